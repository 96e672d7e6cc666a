"""kill -9 of the driver at every step of an epoch: started again from its checkpoint, the recount agrees.

The state is a sum: what a batch that is run again adds twice shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keyhole.steps import Step
from tests.support.pipeline import Pipeline

STEPS = [step for step in Step if step.value.startswith("driver-")]


@pytest.fixture
def pipeline(kafka: str, spark_jars: list[Path], tmp_path: Path) -> Iterator[Pipeline]:
    running = Pipeline(tmp_path, kafka, spark_jars)
    yield running
    running.close()


def test_batches_that_a_driver_killed_at_any_step_runs_again_are_added_once(pipeline: Pipeline) -> None:
    pipeline.start_server()
    pipeline.kill_driver_at(STEPS)
    pipeline.await_recount()

    def published() -> dict[int, int]:
        return {int(path.name): int(path.read_text()) for path in (pipeline.directory / "published").iterdir()}

    # And what it wrote elsewhere as its epochs were complete, which is a moment after readers see them.
    events = sum(events for events, _, _ in pipeline.expected.values())
    pipeline.await_(lambda: sum(published().values()) >= events, "what the last epoch writes elsewhere")
    assert sorted(published()) == list(range(1, len(published()) + 1))
    assert sum(published().values()) == events
