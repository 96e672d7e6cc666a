"""kill -9 of the state server at every step of an epoch: it comes back, the query goes on, the recount agrees."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from keyhole import Client
from keyhole.steps import Step
from tests.support.counting_job import STATE
from tests.support.pipeline import Pipeline

pytestmark = pytest.mark.integration

STEPS = [step for step in Step if step.value.startswith("server-")]


@pytest.fixture
def pipeline(kafka: str, spark_jars: list[Path], tmp_path: Path) -> Iterator[Pipeline]:
    running = Pipeline(tmp_path, kafka, spark_jars)
    yield running
    running.close()


@pytest.mark.parametrize("step", STEPS)
def test_a_server_killed_at_any_step_loses_nothing_and_counts_nothing_twice(pipeline: Pipeline, step: Step) -> None:
    kill_at(pipeline, step, {})


@pytest.mark.parametrize("step", [Step.SERVER_TRANSACTION_COMMITTED, Step.SERVER_STORE_WRITTEN])
def test_a_server_with_its_states_in_rocksdb_that_is_killed_around_a_write_counts_nothing_twice(
    pipeline: Pipeline, step: Step
) -> None:
    kill_at(pipeline, step, {"KEYHOLE_STATE_SERVER_STORE": "rocksdb"})
    assert (pipeline.directory / "server-0" / "FORMAT").read_text() == "keyhole rocksdb 1\n"


def kill_at(pipeline: Pipeline, step: Step, settings: dict[str, str]) -> None:
    pipeline.produce(1000)
    marker = pipeline.directory / "killed"
    kill = {"KILL_AT": step.value, "KILL_EPOCH": "3", "KILL_MARKER": str(marker)}
    server = pipeline.start_server({**settings, **kill}, killable=True)
    driver = pipeline.start_driver(per_trigger=100)
    pipeline.await_(lambda: server.exit_code is not None, "the server's death")
    assert marker.exists()
    pipeline.start_server(settings)
    pipeline.await_recount()
    assert driver.exit_code is None  # the same query: it never ended


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
