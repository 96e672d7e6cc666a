"""kill -9 of the state server at every step of an epoch: it comes back, the query goes on, the recount agrees.

The state is a sum: what an epoch that is committed again adds twice shows. One query goes through all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keyhole import Client
from keyhole.steps import Step
from tests.support.counting_job import STATE
from tests.support.pipeline import Pipeline

STEPS = [step for step in Step if step.value.startswith("server-")]
ROCKSDB = {"KEYHOLE_STATE_SERVER_STORE": "rocksdb"}


@pytest.fixture(scope="module")
def pipeline(kafka: str, spark_jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    running = Pipeline(tmp_path_factory.mktemp("pipeline"), kafka, spark_jars)
    running.start_server()
    running.start_driver()
    yield running
    running.close()


def assert_recount(pipeline: Pipeline) -> None:
    pipeline.await_recount()
    assert pipeline.driver is not None
    assert pipeline.driver.exit_code is None, "the same query: it never ended"


def test_a_server_killed_at_every_step_loses_nothing_and_adds_nothing_twice(pipeline: Pipeline) -> None:
    pipeline.kill_server_at(STEPS)
    assert_recount(pipeline)


def test_a_server_with_its_states_in_rocksdb_that_is_killed_around_a_write_adds_nothing_twice(
    pipeline: Pipeline,
) -> None:
    pipeline.lose_store()
    pipeline.kill_server_at([Step.SERVER_TRANSACTION_COMMITTED, Step.SERVER_STORE_WRITTEN], ROCKSDB)
    assert_recount(pipeline)
    assert (pipeline.directory / "server-0" / "FORMAT").read_text() == "keyhole rocksdb 1\n"


def test_a_server_whose_store_is_lost_rebuilds_it_from_the_changelog(pipeline: Pipeline) -> None:
    pipeline.produce(300)
    pipeline.await_recount()
    pipeline.lose_store()
    pipeline.start_server()
    assert_recount(pipeline)
    with Client(pipeline.address) as client:
        (status,) = client.status()
    (holding,) = status.holdings
    assert holding.descriptor.state == STATE
    assert holding.ready
    assert holding.restored_records == holding.records_to_restore > 0
