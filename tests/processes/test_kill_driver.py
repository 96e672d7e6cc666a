"""kill -9 of the driver at every step of an epoch: started again from its checkpoint, the recount agrees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keyhole.steps import Step
from tests.support.pipeline import EVENTS_PER_KILL, Pipeline

STEPS = [step for step in Step if step.value.startswith("driver-")]


@pytest.fixture
def pipeline(kafka: str, spark_jars: list[Path], tmp_path: Path) -> Iterator[Pipeline]:
    running = Pipeline(tmp_path, kafka, spark_jars)
    yield running
    running.close()


def test_a_driver_killed_at_every_step_goes_on_where_it_was(pipeline: Pipeline) -> None:
    pipeline.produce(EVENTS_PER_KILL * (len(STEPS) + 1))
    pipeline.start_server()
    pipeline.kill_driver_at(STEPS)
    pipeline.await_recount()
