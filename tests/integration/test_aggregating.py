"""An aggregating state with real processes: killed within an epoch, each event counts once in what the tasks merge."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from keyhole import Client
from keyhole.steps import Step
from tests.support.counting_job import STATE
from tests.support.pipeline import PATIENCE_SECONDS, Pipeline

pytestmark = pytest.mark.integration

EVENTS = 600


@pytest.fixture
def pipeline(kafka: str, spark_jars: list[Path], tmp_path: Path) -> Iterator[Pipeline]:
    running = Pipeline(tmp_path, kafka, spark_jars, mode="aggregating")
    running.produce(EVENTS)
    yield running
    running.close()


def await_recount(pipeline: Pipeline) -> None:
    """Numbers, maxima and sums."""
    pipeline.await_recount()
    draw, expected = random.Random(7), Counter[str]()
    for _ in range(EVENTS):
        key = f"key-{draw.randrange(40)}"
        expected[key] += draw.randrange(1_000_000)
    with Client(pipeline.address, timeout=5) as client:
        found = client.get_many(pipeline.application, STATE, sorted(expected))
    assert [answer.value.total for answer in found] == [expected[key] for key in sorted(expected)]


@pytest.mark.parametrize("step", [Step.SERVER_STAGED, Step.SERVER_TRANSACTION_COMMITTED, Step.SERVER_COMMITTED])
def test_a_server_killed_within_an_epoch_merges_nothing_twice(pipeline: Pipeline, step: Step) -> None:
    marker = pipeline.directory / "killed"
    kill = {"KILL_AT": step.value, "KILL_EPOCH": "3", "KILL_MARKER": str(marker)}
    server = pipeline.start_server(kill, killable=True)
    driver = pipeline.start_driver(per_trigger=100)
    pipeline.await_(lambda: server.exit_code is not None, "the server's death")
    assert marker.exists()
    pipeline.start_server()
    await_recount(pipeline)
    assert driver.exit_code is None, "the same query, which is strict: no round gave other accumulators"


@pytest.mark.parametrize("step", [Step.DRIVER_COMMITTED, Step.DRIVER_COMPLETE])
def test_a_batch_that_a_restarted_driver_runs_again_is_merged_once(pipeline: Pipeline, step: Step) -> None:
    pipeline.start_server()
    marker = pipeline.directory / "killed"
    kill = {"KILL_AT": step.value, "KILL_EPOCH": "3", "KILL_MARKER": str(marker)}
    driver = pipeline.start_driver(kill, per_trigger=100)
    driver.wait(PATIENCE_SECONDS)
    assert marker.exists()
    pipeline.start_driver(per_trigger=100)
    await_recount(pipeline)
