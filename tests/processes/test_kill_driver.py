"""kill -9 of the driver at steps of an epoch: started again from its checkpoint, the recount agrees.

The states are sums, merged by the server and by the tasks: what a batch that is run again adds twice shows. An
aggregating state that is killed at any moment: the state `chains` of tests/fault. A driver that dies at any message,
without processes: tests/property/test_protocol.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keyhole.protocol.failpoints import Step
from tests.support.counting_job import MADE_IN_TASKS
from tests.support.pipeline import Pipeline

# Nothing is staged; all is, and nothing decided; it is decided, and no server knows; all servers have committed, and
# nobody has been told; readers have the epoch, and neither Spark nor `on_commit` has been told.
STEPS = [step for step in Step if step.name.startswith("DRIVER_")]


@pytest.fixture(scope="module")
def killed(kafka: str, spark_jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """All of it has happened; the last driver and the last server live."""
    running = Pipeline(tmp_path_factory.mktemp("pipeline"), kafka, spark_jars, mode="merging")
    try:
        running.start_server()
        # At two of them the owner holds the epoch already when the tasks ask for what there was before it.
        running.kill_driver_at(STEPS)
        running.await_recount()
        running.kill_server_at([Step.SERVER_TRANSACTION_COMMITTED])
        running.await_recount()
        yield running
    finally:
        running.close()


def test_batches_that_a_killed_driver_runs_again_are_added_once(killed: Pipeline) -> None:
    killed.await_idle()
    published = killed.published()
    assert sorted(published) == list(range(1, len(published) + 1))
    assert sum(published.values()) == sum(events for events, _, _ in killed.expected.values())


def test_what_tasks_have_merged_counts_once_though_the_driver_and_then_the_server_are_killed_within_epochs(
    killed: Pipeline,
) -> None:
    assert killed.answers(MADE_IN_TASKS)[0] == killed.expected
    assert killed.driver is not None
    assert killed.driver.exit_code is None, "the same query, which is strict: no round gave other accumulators"
