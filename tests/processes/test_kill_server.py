"""kill -9 of the state server at every step of an epoch: it comes back, the query goes on, the recount agrees."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from keyhole import Client
from keyhole.steps import Step
from tests.support.counting_job import STATE
from tests.support.pipeline import EVENTS_PER_KILL, Pipeline

STEPS = [step for step in Step if step.value.startswith("server-")]


@pytest.fixture
def pipeline(kafka: str, spark_jars: list[Path], tmp_path: Path) -> Iterator[Pipeline]:
    running = Pipeline(tmp_path, kafka, spark_jars)
    yield running
    running.close()


def test_a_server_killed_at_every_step_loses_nothing_and_counts_nothing_twice(pipeline: Pipeline) -> None:
    kill_at(pipeline, STEPS, {})


@pytest.mark.thorough("every step, with another store, runs always")
def test_a_server_with_its_states_in_rocksdb_that_is_killed_around_a_write_counts_nothing_twice(
    pipeline: Pipeline,
) -> None:
    around = [Step.SERVER_TRANSACTION_COMMITTED, Step.SERVER_STORE_WRITTEN]
    kill_at(pipeline, around, {"KEYHOLE_STATE_SERVER_STORE": "rocksdb"})
    assert (pipeline.directory / "server-0" / "FORMAT").read_text() == "keyhole rocksdb 1\n"


def kill_at(pipeline: Pipeline, steps: Sequence[Step], settings: dict[str, str]) -> None:
    pipeline.produce(EVENTS_PER_KILL * (len(steps) + 1))
    pipeline.kill_server_at(steps, settings)
    pipeline.await_recount()
    assert pipeline.driver is not None
    assert pipeline.driver.exit_code is None  # the same query: it never ended


def test_a_server_whose_store_is_lost_rebuilds_it_from_the_changelog(pipeline: Pipeline) -> None:
    pipeline.produce(600)
    server = pipeline.start_server()
    pipeline.start_driver(per_trigger=100)
    pipeline.await_recount()
    server.kill()
    shutil.rmtree(pipeline.directory / "server-0")
    pipeline.start_server()
    pipeline.await_recount()
    with Client(pipeline.address) as client:
        (status,) = client.status()
    (holding,) = status.holdings
    assert holding.descriptor.state == STATE
    assert holding.ready
    assert holding.restored_records == holding.records_to_restore > 0
