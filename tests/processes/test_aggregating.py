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
from tests.support.pipeline import EVENTS_PER_KILL, Pipeline

EVENTS = 4 * EVENTS_PER_KILL


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


def test_a_server_killed_within_epochs_merges_nothing_twice(pipeline: Pipeline) -> None:
    pipeline.kill_server_at([Step.SERVER_STAGED, Step.SERVER_TRANSACTION_COMMITTED, Step.SERVER_COMMITTED])
    await_recount(pipeline)
    assert pipeline.driver is not None
    assert pipeline.driver.exit_code is None, "the same query, which is strict: no round gave other accumulators"


def test_batches_that_a_restarted_driver_runs_again_are_merged_once(pipeline: Pipeline) -> None:
    pipeline.start_server()
    pipeline.kill_driver_at([Step.DRIVER_COMMITTED, Step.DRIVER_COMPLETE])
    await_recount(pipeline)
