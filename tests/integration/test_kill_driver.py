"""kill -9 of the driver at every step of an epoch: started again from its checkpoint, the recount agrees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keyhole.steps import Step
from tests.support.pipeline import PATIENCE_SECONDS, Pipeline

pytestmark = pytest.mark.integration

STEPS = [step for step in Step if step.value.startswith("driver-")]


@pytest.fixture
def pipeline(kafka: str, spark_jars: list[Path], tmp_path: Path) -> Iterator[Pipeline]:
    running = Pipeline(tmp_path, kafka, spark_jars)
    yield running
    running.close()


@pytest.mark.parametrize("step", STEPS)
def test_a_driver_killed_at_any_step_goes_on_where_it_was(pipeline: Pipeline, step: Step) -> None:
    pipeline.produce(1000)
    pipeline.start_server()
    marker = pipeline.directory / "killed"
    kill = {"KILL_AT": step.value, "KILL_EPOCH": "3", "KILL_MARKER": str(marker)}
    driver = pipeline.start_driver(kill, per_trigger=100)
    assert driver.wait(PATIENCE_SECONDS) is not None
    assert marker.exists(), driver.output()[-3000:]
    pipeline.start_driver(kill, per_trigger=100)
    pipeline.await_recount()
