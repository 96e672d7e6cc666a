"""States that begin with the rows of a table and go on with a stream, whatever is killed in between."""

from __future__ import annotations

import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from keyhole import Client
from keyhole.config import JobConfig
from keyhole.errors import CheckpointMismatch, InvalidConfiguration, StateConflict
from keyhole.local.ports import free_ports
from keyhole.local.services import start_state_server
from keyhole.protocol.failpoints import Step
from keyhole.spark import queryable
from tests.support.bootstrapping_job import STATE, feed
from tests.support.killable_job import run_until_killed
from tests.support.peak_memory import PeakMemory
from tests.support.streams import RunQuery, Service, Stream
from tests.support.waiting import LONG_SECONDS

SCHEMA = "customer string, payment long, amount long"
CUSTOMERS = [f"c{number}" for number in range(6)]
Row = dict[str, Any]


def payments(start: int, stop: int) -> list[Row]:
    """As many, each by chance of a customer and an amount; the same for the same number."""
    draws = ((n, random.Random(n)) for n in range(start, stop))
    return [{"customer": draw.choice(CUSTOMERS), "payment": n, "amount": draw.randrange(1000)} for n, draw in draws]


PAST, THEN = payments(0, 300), payments(300, 360)
BATCHES = [THEN[:40], THEN[40:]]


def totals(rows: Sequence[Row]) -> dict[str, tuple[int, int]]:
    """By customer, sum and number."""
    sums, numbers = Counter[str](), Counter[str]()
    for row in rows:
        sums[row["customer"]] += row["amount"]
        numbers[row["customer"]] += 1
    return {customer: (sums[customer], numbers[customer]) for customer in sums}


@pytest.fixture
def history(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A table of the past payments."""
    path = str(tmp_path / "history")
    spark.createDataFrame([tuple(row.values()) for row in PAST], SCHEMA).write.parquet(path)
    return spark.read.parquet(path)


class Mean:
    commutative = True

    def create(self) -> list[int]:
        return [0, 0]

    def add(self, accumulator: list[int], row: Any) -> list[int]:
        return [accumulator[0] + row.amount, accumulator[1] + 1]

    def merge(self, one: list[int], other: list[int]) -> list[int]:
        return [one[0] + other[0], one[1] + other[1]]

    def result(self, accumulator: list[int]) -> dict[str, float]:
        return {"mean": accumulator[0] / accumulator[1]}


def test_states_of_each_kind_begin_with_a_table_and_go_on_with_a_stream(
    history: DataFrame, stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    config = service.config(application)
    common: dict[str, Any] = {"key": "customer", "key_groups": 8, "config": config}
    sink = queryable.together(
        queryable.value("last", order_by="payment", **common),
        queryable.map("payments", map_key="payment", **common),
        queryable.list("log", value=["amount"], order_by="payment", unbounded=True, **common),
        queryable.reducing("spent", reducers={"amount": "sum", "payment": "count"}, **common),
        queryable.aggregating("mean", aggregator=Mean(), result="mean double", value=["amount"], **common),
        queryable.reducing("payments_of", reducers={"n": "sum"}, **common).of(
            lambda rows: rows.groupBy("customer").agg(F.count("*").alias("n"))
        ),
        query="payments",
    )
    assert sink.bootstrap(history)

    def check(rows: list[Row], epoch: int) -> None:
        of: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            of[row["customer"]].append(row)
        with Client(service.proxy, timeout=LONG_SECONDS) as client:
            for customer, mine in of.items():
                amounts = [row["amount"] for row in mine]
                last, spent, mean, n = (
                    client.get(application, state, customer) for state in ("last", "spent", "mean", "payments_of")
                )
                assert {last.epoch, spent.epoch, mean.epoch, n.epoch} == {epoch}
                assert (last.value.payment, last.value.amount) == (mine[-1]["payment"], amounts[-1])
                assert (spent.value.amount, spent.value.payment) == (sum(amounts), len(amounts))
                assert (mean.value.mean, n.value.n) == (sum(amounts) / len(amounts), len(amounts))
                entries = client.scan(application, "payments", customer)
                assert {entry.map_key: entry.value.amount for entry in entries} == {
                    row["payment"]: row["amount"] for row in mine
                }
                assert [element.amount for element in client.scan(application, "log", customer).values] == amounts

    check(PAST, 1)
    assert not sink.bootstrap(history), "it has been done"
    run_query(stream(SCHEMA, [THEN]), "append", sink, name="payments")
    check(PAST + THEN, 2)
    assert not sink.bootstrap(history), "nor is it done again when the job is started again"


def test_what_cannot_be_bootstrapped_is_refused_with_what_to_do(
    history: DataFrame, stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    config = service.config(application)
    sink = queryable.value("last", key="customer", order_by="payment", query="payments", config=config)
    with pytest.raises(InvalidConfiguration, match="give their sink query="):
        queryable.value("last", key="customer", config=config).bootstrap(history)
    with pytest.raises(InvalidConfiguration, match=r"read the history with spark\.read"):
        sink.bootstrap(stream(SCHEMA, BATCHES))
    run_query(stream(SCHEMA, BATCHES), "append", sink)
    with pytest.raises(StateConflict, match="'payments' has completed epoch 2: its states are not empty") as caught:
        sink.bootstrap(history)
    assert all(words in caught.value.message for words in ("other names", 'on_new_checkpoint="reset"'))
    replacing = queryable.value(
        "last", key="customer", order_by="payment", query="payments", on_new_checkpoint="reset", config=config
    )
    assert replacing.bootstrap(history.filter("customer = 'c0'"), name="c0 alone")
    with Client(service.proxy, timeout=LONG_SECONDS) as client:
        found = client.get_many(application, "last", CUSTOMERS)
    assert [answer.found for answer in found] == [True] + 5 * [False]
    # The checkpoint of before has no batches that are missing, or there already, only if somebody says so.
    with pytest.raises(Exception, match="checkpoint"):
        run_query(stream(SCHEMA, [*BATCHES, payments(360, 370)]), "append", sink)
    assert isinstance(sink.failure, CheckpointMismatch)
    assert "was in use before" in sink.failure.message


def test_a_table_without_rows_is_a_bootstrap_too(
    history: DataFrame, stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    sink = queryable.value(
        "last", key="customer", order_by="payment", query="payments", config=service.config(application)
    )
    assert sink.bootstrap(history.filter("amount < 0"))
    assert not sink.bootstrap(history), "whatever the rows are: it is known by its name"
    run_query(stream(SCHEMA, BATCHES), "append", sink)
    with Client(service.proxy, timeout=LONG_SECONDS) as client:
        found = client.get_many(application, "last", CUSTOMERS)
    assert {answer.value.payment for answer in found} == {
        max(row["payment"] for row in THEN if row["customer"] == customer) for customer in CUSTOMERS
    }


def test_what_a_history_holds_lives_from_its_watermark_on(
    spark: SparkSession, stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    sink = queryable.value(
        "seen",
        key="k",
        key_groups=8,
        ttl=timedelta(hours=2),
        ttl_clock="event_time",
        query="seen",
        config=service.config(application),
    )
    old = spark.createDataFrame([("a", start), ("b", start)], "k string, at timestamp")
    with pytest.raises(InvalidConfiguration, match="say up to when the history goes with watermark="):
        sink.bootstrap(old)
    assert sink.bootstrap(old, watermark=start)

    def found() -> list[bool]:
        with Client(service.proxy, timeout=LONG_SECONDS) as client:
            return [answer.found for answer in client.get_many(application, "seen", ["a", "b", "c"])]

    assert found() == [True, True, False]
    batches = [
        [{"k": "a", "at": (start + timedelta(hours=1)).isoformat()}],
        [{"k": "c", "at": (start + timedelta(hours=2, minutes=30)).isoformat()}],
        [{"k": "c", "at": (start + timedelta(hours=2, minutes=31)).isoformat()}],
    ]
    run_query(stream("k string, at timestamp", batches).withWatermark("at", "1 minute"), "append", sink)
    assert found() == [True, False, True]


@pytest.mark.usefixtures("history")
def test_a_driver_killed_in_the_bootstrap_and_again_right_after_it_counts_each_row_once(
    spark: SparkSession, service: Service, tmp_path: Path, application: str
) -> None:
    (tmp_path / "stream").mkdir()
    for number, rows in enumerate(BATCHES):
        (tmp_path / "stream" / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
    paths = {name: str(tmp_path / name) for name in ("history", "stream", "checkpoint")}
    config = service.config(application)
    for step in (Step.DRIVER_COMMITTED, Step.DRIVER_COMPLETE):
        directory = tmp_path / step
        directory.mkdir()
        run_until_killed("tests.support.bootstrapping_job", paths, config, directory, step, 1)
    feed(spark, **paths, config=config)
    with Client(service.proxy, timeout=LONG_SECONDS) as client:
        found = client.get_many(application, STATE, CUSTOMERS)
    sums = {customer: (a.value.amount, a.value.payment) for customer, a in zip(CUSTOMERS, found, strict=True)}
    assert sums == totals(PAST + THEN)


# Two thirds of it are more than a server takes for an epoch of any size (test_large_epochs.py): 300 MB are enough to
# tell. On a machine that was far too busy it took half.
BLOB_BYTES, BLOBS, STAGED_BYTES = 16_000, 18_750, 8 << 20


def test_a_bootstrap_of_300_mb_goes_through_a_server_that_stages_8_in_memory(
    spark: SparkSession, kafka: str, tmp_path: Path, application: str
) -> None:
    (port,) = free_ports(1)
    # With as many of malloc's heaps as in our images, each of which keeps what was freed in it.
    limits = {"KEYHOLE_STATE_SERVER_MAX_STAGED_BYTES": str(STAGED_BYTES), "MALLOC_ARENA_MAX": "2"}
    server = start_state_server(
        "server-0", port, bootstrap_servers=kafka, directory=tmp_path, environ={**os.environ, **limits}
    )
    try:
        config = JobConfig(application, (f"127.0.0.1:{port}",), kafka, epoch_deadline_seconds=10 * LONG_SECONDS)
        sink = queryable.value("blobs", key="id", key_groups=32, query="blobs", config=config)
        noise = F.concat(*(F.sha2(F.concat("id", F.lit(f"/{n}")), 512) for n in range(BLOB_BYTES // 128)))
        with PeakMemory(server.pid) as memory:
            assert sink.bootstrap(spark.range(BLOBS).select("id", noise.alias("blob")))
        with Client(f"127.0.0.1:{port}", timeout=LONG_SECONDS) as client:
            assert len(client.get(application, "blobs", BLOBS - 1).value.blob) == BLOB_BYTES // 128 * 128
            (status,) = client.status()
        assert [holding.entries for holding in status.holdings] == [BLOBS]
        grown = memory.bytes - memory.before
        assert grown < BLOBS * BLOB_BYTES * 2 // 3, f"{grown >> 20} MiB for {BLOBS * BLOB_BYTES >> 20} MiB"
    finally:
        server.kill()
