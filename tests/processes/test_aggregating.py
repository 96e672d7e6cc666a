"""An aggregating state with real processes: killed within an epoch, each event counts once in what the tasks merge.

At any moment: the state `chains` of tests/fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keyhole.steps import Step
from tests.support.pipeline import Pipeline


@pytest.fixture
def pipeline(kafka: str, spark_jars: list[Path], tmp_path: Path) -> Iterator[Pipeline]:
    running = Pipeline(tmp_path, kafka, spark_jars, mode="aggregating")
    yield running
    running.close()


def test_what_tasks_have_merged_counts_once_though_the_driver_and_then_the_server_are_killed_within_epochs(
    pipeline: Pipeline,
) -> None:
    pipeline.start_server()
    # The owner holds the epoch already when the tasks ask for what there was before it.
    pipeline.kill_driver_at([Step.DRIVER_COMMITTED])
    pipeline.kill_server_at([Step.SERVER_TRANSACTION_COMMITTED])
    pipeline.await_recount()
    assert pipeline.driver is not None
    assert pipeline.driver.exit_code is None, "the same query, which is strict: no round gave other accumulators"
