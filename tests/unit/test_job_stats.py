"""What a job says of itself: Spark's progress as Spark writes it, and the ports that it is told on."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark import SparkContext

from keyhole.clock import SystemClock
from keyhole.config import JobConfig
from keyhole.coordinator.counts import SparkCounts
from keyhole.coordinator.progress import note_progress
from keyhole.coordinator.stats import JobStats, stats_of
from keyhole.errors import InvalidConfiguration, PortTaken
from keyhole.local.ports import free_ports, is_free
from keyhole.metrics.cardinality import MOST_QUERIES, MOST_TOPICS, OTHER
from keyhole.spark import queryable
from tests.support import figures
from tests.support.exporters import scrape
from tests.support.waiting import LONG_SECONDS

# As Spark 4.2 tells it, without what is of no use here.
PROGRESS: dict[str, Any] = {
    "runId": "2cf8",
    "batchId": 4,
    "numInputRows": 20,
    "inputRowsPerSecond": 10.0,
    "processedRowsPerSecond": 40.0,
    "durationMs": {"addBatch": 400, "walCommit": 50, "triggerExecution": 500, "of a later version": 7},
    "eventTime": {"watermark": "2023-11-14T22:13:20.000Z"},
    "stateOperators": [
        {
            "numRowsTotal": 9,
            "numRowsUpdated": 3,
            "memoryUsedBytes": 512,
            "numRowsDroppedByWatermark": 1,
            "commitTimeMs": 30,
        },
        {"numRowsTotal": 1, "memoryUsedBytes": 8},
    ],
    "sources": [
        {"description": "KafkaV2[Subscribe[orders]]", "endOffset": {"orders": {"0": 7, "1": 11}}},
        {"description": "RateStreamV2", "endOffset": 17},
    ],
}


def test_a_batch_is_counted_as_spark_tells_it() -> None:
    counts = SparkCounts()
    note_progress(counts, PROGRESS)
    note_progress(counts, {**PROGRESS, "batchId": 5})
    assert (counts.batches, counts.batch, counts.input_rows) == (2, 5, 40)
    assert counts.seconds.sum == pytest.approx(1.0)
    assert counts.phase_seconds == pytest.approx(
        {"addBatch": 0.8, "walCommit": 0.1, "triggerExecution": 1.0, OTHER: 0.014}
    )
    assert counts.watermark_ms == 1_700_000_000_000
    assert (counts.state_rows, counts.state_memory_bytes) == (10, 520)
    assert (counts.state_updated, counts.state_dropped) == (6, 2)
    assert counts.state_commit_seconds == pytest.approx(0.06)
    assert counts.sources == {("orders", 0): 7, ("orders", 1): 11}


@pytest.mark.parametrize("rate", [None, "NaN", float("inf"), float("nan")])
def test_a_rate_that_is_no_number_is_0(rate: object) -> None:
    counts = SparkCounts()
    note_progress(counts, {**PROGRESS, "inputRowsPerSecond": rate})
    assert counts.input_rows_per_second == 0.0


def test_a_trigger_that_found_nothing_new_is_no_batch() -> None:
    counts = SparkCounts()
    note_progress(counts, {"batchId": 5, "numInputRows": 0, "durationMs": {"latestOffset": 3, "triggerExecution": 3}})
    assert (counts.batches, counts.batch) == (0, -1)


async def test_queries_beyond_the_bound_are_told_together() -> None:
    stats = JobStats("shop", "", "", SystemClock())
    for number in range(1_000):
        stats.counts.query(f"query-{number}").epochs += 1
    read = await stats.read()
    assert not figures.beyond_the_catalogue(read)
    assert figures.value(read, "keyhole_job_complete_epochs_total") == 1_000
    assert figures.value(read, "keyhole_job_complete_epochs_total", query=OTHER) == 1_000 - MOST_QUERIES


@pytest.mark.parametrize(("what", "of_one", "of_others"), [("checked", 50, 70), ("rejected", 5, 7)])
async def test_records_are_told_by_topic_from_0_on_and_topics_beyond_the_bound_together(
    what: str, of_one: int, of_others: int
) -> None:
    stats = JobStats("shop", "", "", SystemClock())
    for number in range(1_000):
        stats.counts.check(f"topic-{number}", 0, 0)
    stats.counts.check("topic-1", 20, 2)
    stats.counts.check("topic-1", 30, 3)
    stats.counts.check("topic-999", 70, 7)
    read = await stats.read()
    assert not figures.beyond_the_catalogue(read)
    name = f"keyhole_job_{what}_records_total"
    assert {tuple(s.labels): s.value for f in read.families if f.name == name for s in f.samples} == {
        **{("shop", f"topic-{number}"): of_one * (number == 1) for number in range(MOST_TOPICS)},
        (OTHER, OTHER): of_others,
    }


def test_it_is_told_by_grpc_and_on_its_own_page_while_queries_come_and_go() -> None:
    page = f"127.0.0.1:{free_ports(1)[0]}"
    stats = JobStats("shop", "127.0.0.1:0", page, SystemClock())
    stats.start()
    try:
        note_progress(stats.counts.spark("main"), PROGRESS)
        read = asyncio.run(figures.read_stats(stats.address))
        assert (read.name, len(read.sources)) == ("shop", 2)
        assert figures.value(read, "keyhole_spark_input_rows_total", query="main") == 20
        assert asyncio.run(scrape(page)).value("keyhole_spark_state_rows") == 10
    finally:
        stats.stop()


def test_a_job_that_nobody_asks_serves_nothing() -> None:
    config = JobConfig("nobody-asks", ("a:1",), "memory")
    stats = stats_of(config)
    assert not stats.served
    assert stats is stats_of(dataclasses.replace(config))


def test_configurations_that_differ_in_what_ports_have_nothing_to_do_with_share_one_port() -> None:
    """As those of two queries of one driver, of which one may take longer."""
    stats, page = (f"127.0.0.1:{port}" for port in free_ports(2))
    config = JobConfig("differing", ("a:1",), "memory", stats=stats, metrics=page)
    begun = stats_of(config)
    try:
        patient = dataclasses.replace(config, epoch_deadline_seconds=600, servers=("b:1",), token_file="/of/the/second")
        assert stats_of(patient) is begun
    finally:
        begun.stop()


@pytest.mark.parametrize(
    "differing",
    [
        {"application": "another"},
        {"metrics": "127.0.0.1:0"},
        {"policy": "/somewhere/else"},
        {"application": "another", "metrics": "127.0.0.1:0", "tls": "on"},
    ],
    ids=" ".join,
)
def test_a_port_of_this_process_that_is_to_be_served_otherwise_is_named_with_what_differs(
    differing: dict[str, str],
) -> None:
    (port,) = free_ports(1)
    config = JobConfig("contradicted", ("a:1",), "memory", stats=f"127.0.0.1:{port}")
    begun = stats_of(config)
    try:
        with pytest.raises(InvalidConfiguration, match=f"differs in {', '.join(differing)}: give") as caught:
            stats_of(dataclasses.replace(config, **differing))  # type: ignore[arg-type]
        assert f"127.0.0.1:{port} tells the figures of contradicted" in caught.value.message
    finally:
        begun.stop()


def test_an_application_whose_queries_some_serve_and_some_do_not_is_told_by_those_that_do() -> None:
    silent = JobConfig("in-part", ("a:1",), "memory")
    served = dataclasses.replace(silent, stats="127.0.0.1:0")
    begun = stats_of(served)
    try:
        assert stats_of(silent) is not begun
        assert not stats_of(silent).served
    finally:
        begun.stop()


def test_a_port_that_is_taken_and_an_address_that_is_none_are_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PortTaken, match="another process has the port"):
            JobStats("shop", f"127.0.0.1:{taken.getsockname()[1]}", "", SystemClock()).start()
    with pytest.raises(InvalidConfiguration, match="must be host:port"):
        JobStats("shop", "7430", "", SystemClock()).start()


def test_queries_that_begin_at_once_share_one_page_and_one_port() -> None:
    (port,) = free_ports(1)
    together = threading.Barrier(8)

    def begin() -> JobStats:
        together.wait(LONG_SECONDS)
        return stats_of(JobConfig("begun-at-once", ("a:1",), "memory", stats=f"127.0.0.1:{port}"))

    with ThreadPoolExecutor(8) as pool:
        begun = [asked.result(LONG_SECONDS) for asked in [pool.submit(begin) for _ in range(8)]]
    begun[0].stop()
    assert len({id(one) for one in begun}) == 1


async def test_a_job_whose_source_is_quiet_answers_from_its_sinks_declaration_on_and_a_worker_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (port,) = free_ports(1)
    config = JobConfig("quiet", ("127.0.0.1:1",), "memory", stats=f"127.0.0.1:{port}")
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    queryable.value("orders", key="k", config=config)
    assert is_free(port)
    monkeypatch.setattr(SparkContext, "_active_spark_context", object())
    queryable.value("orders", key="k", config=config)
    try:
        assert (await figures.read_stats(config.stats)).name == "quiet"
    finally:
        stats_of(config).stop()
