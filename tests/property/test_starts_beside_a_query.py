"""However many starts are refused beside a query that runs well, in whatever order: nothing of them is ever seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refused_starts import REFUSALS, Refusal, healthy, snapshot, start
from tests.support.sums import ONE, sums

Step = Refusal | Literal["an epoch", "a heartbeat", "time"]

steps = st.lists(st.sampled_from(REFUSALS) | st.sampled_from(["an epoch", "a heartbeat", "time"]), max_size=8)


@given(steps)
def test_refused_starts_never_fence_a_query_that_runs_well(steps: Sequence[Step]) -> None:
    world = healthy()
    assert world.coordinator is not None
    done = 2
    for step in steps:
        if step == "an epoch":
            assert world.run_epoch(done, ONE).epoch == done + 1
            done += 1
        elif step == "a heartbeat":
            world.coordinator.beat()
        elif step == "time":
            world.clock.advance(10.0)
        else:
            assert isinstance(step, Refusal)
            with step.arrange(world):
                before = snapshot(world)
                with pytest.raises(step.error):
                    start(world, step, batch_id=done)
                assert snapshot(world) == before
    assert world.run_epoch(done, ONE).epoch == done + 1
    assert sums(world) == [done + 1.0] * len(ONE)
    world.close()
