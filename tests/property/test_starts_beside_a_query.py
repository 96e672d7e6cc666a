"""However many starts, feeds and restores are refused beside a query that runs well, in whatever order: nothing of
them is ever seen.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.coordinator.feed_run import FeedRun
from keyhole.errors import CheckpointMismatch, SavepointMismatch
from keyhole.savepoint.create import create
from keyhole.savepoint.folder import Folder
from keyhole.savepoint.restore_application import plan_of, restore
from keyhole.savepoint.restore_plan import RestoreOptions
from keyhole.testing.changelog import MemoryChangelog
from keyhole.testing.clock import ManualClock
from tests.support.applications import Application
from tests.support.refused_starts import REFUSALS, Refusal, healthy, snapshot, start
from tests.support.simulation import SimulatedFleet, World
from tests.support.sums import ONE, SUM, sums

Step = Refusal | Literal["an epoch", "a heartbeat", "time", "a feed", "a restore"]
Restore = Callable[[World], None]

OTHERS = ["an epoch", "a heartbeat", "time", "a feed", "a restore"]
steps = st.lists(st.sampled_from(REFUSALS) | st.sampled_from(OTHERS), max_size=8)


@pytest.fixture(scope="module")
def restored() -> Iterator[Restore]:
    """A savepoint of the application, and the restore of it."""
    with tempfile.TemporaryDirectory() as directory:
        saved, made = Folder(f"{directory}/savepoint"), Application()
        made.run(3, {"a": 1.0})
        create("app", made.changelog, saved, {}, ManualClock())

        def restore_into(world: World) -> None:
            place = Path(directory) / "checkpoint"
            _, plan = plan_of(saved, RestoreOptions(checkpoints={"main": str(place)}))
            with pytest.raises(SavepointMismatch, match="in use"):
                restore(saved, plan, MemoryChangelog(world.kafka, "app"), ManualClock(), 1)
            assert not place.exists()

        yield restore_into


def feed(world: World) -> None:
    """`keyhole feed` of the state that the query feeds."""
    of = FeedRun(world.config, SUM.query, MemoryChangelog(world.kafka, "app"), world.clock, fleet=SimulatedFleet(world))
    with contextlib.closing(of), pytest.raises(CheckpointMismatch, match="runs by the epochs"):
        of.start({SUM: 0})


@given(steps=steps)
def test_what_is_refused_never_fences_a_query_that_runs_well(steps: Sequence[Step], restored: Restore) -> None:
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
        elif not isinstance(step, Refusal):
            before = snapshot(world)
            feed(world) if step == "a feed" else restored(world)
            assert snapshot(world) == before
        else:
            with step.arrange(world):
                before = snapshot(world)
                with pytest.raises(step.error):
                    start(world, step, batch_id=done)
                assert snapshot(world) == before
    assert world.run_epoch(done, ONE).epoch == done + 1
    assert sums(world) == [done + 1.0] * len(ONE)
    world.close()
