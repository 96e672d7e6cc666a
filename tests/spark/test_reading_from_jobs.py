"""Jobs that read states: live ones beside their rows, and broadcast ones that stay the same for a batch.

What they read begins with tables. One query runs the batches of all tests.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from pathlib import Path
from pickle import PicklingError
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from keyhole import Client
from keyhole.encoding.row_codec import encode_row
from keyhole.encoding.value_types import MICROS
from keyhole.errors import (
    EpochNotReached,
    InvalidConfiguration,
    KeyMismatch,
    NotReady,
    ServerLost,
    UnknownApplication,
    UnknownState,
)
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_client_proxy
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.spark import queryable
from keyhole.testing.fake_server import FakeServer
from tests.spark.test_state_kinds import Packed
from tests.support.client_udf import value_of
from tests.support.micro_batches import MicroBatches
from tests.support.refusals import raised_in_a_batch
from tests.support.scenario import Scenario, Scenarios
from tests.support.streams import Service
from tests.support.waiting import LONG_SECONDS

SCHEMA = "k string, v long"


@pytest.fixture(scope="module")
def batches(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MicroBatches]:
    with MicroBatches(spark, tmp_path_factory.mktemp("reading"), SCHEMA) as batches:
        yield batches


Announce = Callable[[int], None]


@pytest.fixture
def announce(spark: SparkSession, service: Service, application: str) -> Announce:
    """Broadcasts a rule: from now on k0 has this threshold."""

    def announce(threshold: int) -> None:
        config = service.config(application)
        sink = queryable.broadcast("rules", key="k", query="rules", config=config, on_new_checkpoint="reset")
        assert sink.bootstrap(
            spark.createDataFrame([("k0", threshold)], "k string, threshold long"), name=f"rules-{threshold}"
        )
        with Client(service.proxy, timeout=LONG_SECONDS) as client:
            assert client.get(application, "rules", "k0").value.threshold == threshold

    return announce


@pytest.fixture(scope="module")
def states(scenarios: Scenarios) -> Scenario:
    """An application with `rich`, a value; `last`, another one, and `log`, a list; and `packed`, a broadcast state."""
    scenario = scenarios()
    spark, config = scenario.spark, scenario.config
    schema = "k string, d date, tags array<string>, of map<string,int>, inner struct<a:int,b:string>, n decimal(10,2)"
    rows = [("k0", date(2026, 1, 2), ["x"], {"a": 1}, (1, "y"), Decimal("1.50"))]
    rich = queryable.value("rich", key=["k", "d"], query="rich", key_groups=4, config=config)
    assert rich.bootstrap(spark.createDataFrame(rows, schema))
    numbers = queryable.together(
        queryable.value("last", key="k", key_groups=4, config=config),
        queryable.list("log", key="k", max_length=3, key_groups=4, config=config),
        query="numbers",
    )
    assert numbers.bootstrap(spark.createDataFrame([(f"k{n}", n) for n in range(20)], SCHEMA))
    packed = queryable.broadcast("packed", key="k", codec=Packed(), query="packed", config=config)
    assert packed.bootstrap(spark.createDataFrame([("k0", 1), ("k1", 2)], SCHEMA))
    return scenario


def test_rows_get_the_live_state_of_another_application(spark: SparkSession, states: Scenario) -> None:
    of, proxy = f"{states.application}/rich", states.service.proxy
    rows = spark.createDataFrame(
        [("k0", date(2026, 1, 2)), ("k1", date(2026, 1, 2)), (None, date(2026, 1, 2)), ("k0", date(2026, 1, 2))],
        "name string, day date",
    )
    found = queryable.lookup(rows, of, key=["name", "day"], proxy=proxy).collect()
    assert [one.name for one in found if one.rich is not None] == ["k0", "k0"]
    rich = next(one.rich for one in found if one.rich is not None)
    assert rich == Row(tags=["x"], of={"a": 1}, inner=Row(a=1, b="y"), n=rich.n)
    assert str(rich.n) == "1.50"
    with pytest.raises(KeyMismatch, match="Cast them"):
        queryable.lookup(rows, of, key=["day", "name"], proxy=proxy)
    with pytest.raises(InvalidConfiguration, match="name another one with into="):
        queryable.lookup(rows, of, key=["name", "day"], proxy=proxy, into="day")
    with pytest.raises(UnknownState):
        queryable.lookup(rows, f"{states.application}/poor", key="name", proxy=proxy)


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_the_first_and_the_last_times_are_looked_up_in_a_session_that_has_no_dates_for_them(
    spark: SparkSession, states: Scenario, zone: str
) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        rows = spark.sql(
            "select at, array(at) as ats from values (timestamp'0001-01-01 00:00:00 UTC'), "
            "(timestamp'9999-12-31 23:59:59.999999 UTC') as of(at)"
        )
        name = f"times_{zone.partition('/')[2]}".lower()
        sink = queryable.value(name, key="at", query=name, key_groups=4, config=states.config)
        assert sink.bootstrap(rows)
        found = queryable.lookup(
            rows, f"{states.application}/{name}", key="at", proxy=states.service.proxy, into="was"
        ).selectExpr("unix_micros(at) as at", "unix_micros(was.ats[0]) as was")
        assert sorted(tuple(row) for row in found.collect()) == [(m, m) for m in (MICROS[0], MICROS[-1])]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_a_list_is_not_looked_up_and_the_columns_of_the_rows_may_have_any_name(
    spark: SparkSession, states: Scenario
) -> None:
    rows = spark.createDataFrame([("k3", 1)], "`a.b` string, `c``d` int")
    proxy = states.service.proxy
    (found,) = queryable.lookup(rows, f"{states.application}/last", key="a.b", proxy=proxy).collect()
    assert found.asDict() == {"a.b": "k3", "c`d": 1, "last": Row(v=3)}
    with pytest.raises(InvalidConfiguration, match=f"state {states.application}/log is a list, which has no one value"):
        queryable.lookup(rows, f"{states.application}/log", key="a.b", proxy=proxy)


def test_a_python_udf_reads_with_a_client_of_its_worker_while_the_driver_has_one_open(
    spark: SparkSession, states: Scenario
) -> None:
    application, proxy = states.application, states.service.proxy
    read = F.udf(lambda key: value_of(proxy, application, "last", key), "long")
    with Client(proxy, timeout=LONG_SECONDS) as client:
        assert client.get(application, "last", "k0").value.v == 0
        for _ in range(2):  # the workers stay
            found = spark.createDataFrame([(f"k{n}",) for n in range(21)], "k string").select(read("k"))
            assert [one[0] for one in found.collect()] == [*range(20), None]
        taken_along = F.udf(lambda key: client.get(application, "last", key).value.v, "long")
        with pytest.raises(PicklingError, match="make it in the process that uses it"):
            spark.createDataFrame([("k0",)], "k string").select(taken_along("k"))


def test_a_stream_is_enriched_batch_by_batch(batches: MicroBatches, states: Scenario) -> None:
    of, proxy = f"{states.application}/last", states.service.proxy

    def enrich(data: DataFrame, batch_id: int) -> list[Row]:
        return queryable.lookup(data, of, key="k", proxy=proxy, into="was").collect()

    seen: list[Row] = []
    for half in (range(10), range(10, 20)):
        seen += batches.run([{"k": f"k{n}", "v": n} for n in half], enrich)
    assert sorted((row.k, row.was.v) for row in seen) == sorted((f"k{n}", n) for n in range(20))


def test_rules_that_a_job_has_encoded_are_read_as_its_bytes(batches: MicroBatches, states: Scenario) -> None:
    rules = queryable.BroadcastReader(f"{states.application}/packed", proxy=states.service.proxy)
    read = batches.run([{"k": "k0", "v": 1}], lambda data, _: rules.read(data).collect())
    assert [(row.k, bytes(row.value)) for row in read] == [("k0", b"\xff\x001"), ("k1", b"\xff\x002")]


def test_only_a_broadcast_state_is_read_whole(batches: MicroBatches, states: Scenario) -> None:
    reader = queryable.BroadcastReader(f"{states.application}/last", proxy=states.service.proxy)
    with pytest.raises(InvalidConfiguration, match="only a broadcast state can be read whole"):
        batches.run([{"k": "k0", "v": 1}], lambda data, _: reader.read(data))


def test_a_batch_that_is_run_again_reads_the_rules_that_it_read_before(
    batches: MicroBatches, service: Service, application: str, announce: Announce
) -> None:
    announce(1)
    rules = queryable.BroadcastReader(f"{application}/rules", proxy=service.proxy)
    read: list[tuple[int, int, int]] = []

    def process(data: DataFrame, batch_id: int) -> None:
        found = rules.read(data)
        (rule,) = data.join(F.broadcast(found), "k").collect()
        read.append((batch_id, rule.threshold, rules.epoch(data)))

    def broken(data: DataFrame, batch_id: int) -> None:
        process(data, batch_id)
        raise ValueError("as if it was killed, after its first stage")

    batches.run([{"k": "k0", "v": 10}], process)
    with pytest.raises(StreamingQueryException, match="as if it was killed"):
        batches.fail([{"k": "k0", "v": 11}], broken)
    announce(2)
    batches.again(process)
    batches.run([{"k": "k0", "v": 12}], process)
    first = read[0][0]
    assert [(batch - first, threshold) for batch, threshold, _ in read] == [(0, 1), (1, 1), (1, 1), (2, 2)]
    assert read[1][2] == read[2][2] < read[3][2]


def test_a_driver_that_wakes_late_changes_nothing_of_what_its_successor_has_read(
    batches: MicroBatches,
    service: Service,
    application: str,
    announce: Announce,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    announce(1)
    late, successor = (queryable.BroadcastReader(f"{application}/rules", proxy=service.proxy) for _ in range(2))
    fetched = late._fetched
    read: list[list[tuple[str, int]]] = []

    def process(data: DataFrame, batch_id: int) -> None:
        def suspended(least: int) -> pa.Table:
            content = fetched(least)
            read.append([tuple(row) for row in successor.read(data).collect()])
            return content.slice(0, 0)

        monkeypatch.setattr(late, "_fetched", suspended)
        read.append([tuple(row) for row in late.read(data).collect()])
        read.append([tuple(row) for row in successor.read(data).collect()])

    batches.run([{"k": "k0", "v": 10}], process)
    assert read == [[("k0", 1)]] * 3


def test_nothing_broadcast_yet_is_refused_or_read_as_no_entries_again_too(
    batches: MicroBatches, service: Service, application: str, announce: Announce
) -> None:
    of, columns = f"{application}/rules", "k string, threshold long"
    rules = queryable.BroadcastReader(of, proxy=service.proxy, or_empty=columns, config=service.config(application))
    read: list[tuple[int, list[tuple[str, int]], bool]] = []

    def process(data: DataFrame, batch_id: int) -> None:
        read.append((batch_id, [tuple(row) for row in rules.read(data).collect()], rules.epoch(data) > 0))

    def broken(data: DataFrame, batch_id: int) -> None:
        with pytest.raises((UnknownApplication, UnknownState)):
            queryable.BroadcastReader(of, proxy=service.proxy).read(data)
        process(data, batch_id)
        raise ValueError("as if it was killed")

    with pytest.raises(StreamingQueryException, match="as if it was killed"):
        batches.fail([{"k": "k0", "v": 10}], broken)
    announce(1)
    batches.again(process)
    batches.run([{"k": "k0", "v": 11}], process)
    first = read[0][0]
    assert read == [(first, [], False), (first, [], False), (first + 1, [("k0", 1)], True)]


@contextmanager
def fake_server() -> Iterator[tuple[FakeServer, Callable[[Callable[[], object]], None]]]:
    """One that runs in a thread of its own, and what changes it there."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(of: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(of, loop).result(60)

    async def call(change: Callable[[], object]) -> None:
        change()

    async def make() -> None:
        made.append(FakeServer("fake"))
        await made[0].start()

    made: list[FakeServer] = []
    run(make())
    try:
        yield made[0], lambda change: run(call(change))
    finally:
        run(made[0].stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize("map_key", [(), (KeyColumn("m", KeyType.BIGINT),)], ids=["value", "map"])
def test_a_lookup_asks_for_the_keys_of_a_partition_together(
    spark: SparkSession, map_key: tuple[KeyColumn, ...]
) -> None:
    kind = StateKind.MAP if map_key else StateKind.VALUE
    of = StateDescriptor(
        "app",
        "numbers",
        "q",
        kind,
        8,
        (KeyColumn("k", KeyType.STRING),),
        ValueSchema(1, (ValueField("n", "bigint"),)),
        map_key=map_key,
    )
    rows = spark.range(3000).selectExpr("concat('k', id % 700) as k", "id % 700 as m").repartition(3)
    key = ["k", "m"] if map_key else ["k"]
    with fake_server() as (server, change):
        held = {(f"k{n}", n) if map_key else f"k{n}": encode_row(1, [n]) for n in range(0, 700, 2)}
        change(lambda: server.host(of, held))
        found = queryable.lookup(rows, "app/numbers", key=key, proxy=server.address).collect()
        frames = server.frames
    assert len(found) == 3000
    assert [row.numbers for row in found] == [None if row.m % 2 else Row(n=row.m) for row in found]
    # The client begins with a small frame; then all that is left is in a few.
    assert frames <= 10 * 3, "each of the 3 partitions has about 600 keys"


def test_no_batch_reads_less_than_those_before_it_from_servers_that_are_behind_or_know_nothing_yet(
    batches: MicroBatches,
) -> None:
    field = ValueSchema(1, (ValueField("threshold", "bigint"),))
    rules = StateDescriptor("rules", "rules", "q", StateKind.BROADCAST, 1, (KeyColumn("k", KeyType.STRING),), field)
    with fake_server() as (server, change):

        def broadcast(epoch: int, threshold: int) -> None:
            server.host(rules, {("k0",): encode_row(1, [threshold])}).epoch = epoch

        def reader(timeout: float) -> queryable.BroadcastReader:
            return queryable.BroadcastReader(
                "rules/rules", proxy=server.address, timeout=timeout, or_empty="k string, threshold long"
            )

        patient = reader(LONG_SECONDS)

        def process(data: DataFrame, batch_id: int) -> tuple[int, int]:
            ((_, threshold),) = patient.read(data).collect()
            return threshold, patient.epoch(data)

        def late(data: DataFrame, batch_id: int) -> tuple[int, int]:
            change(lambda: broadcast(1, 10))
            raised_in_a_batch(lambda seconds: reader(seconds).read(data), 3.0, "at epoch 1", EpochNotReached)
            change(server.states.clear)
            raised_in_a_batch(
                lambda seconds: reader(seconds).read(data), 3.0, "rules", UnknownApplication, UnknownState
            )
            change(lambda: broadcast(3, 30))
            return process(data, batch_id)

        change(lambda: broadcast(2, 20))
        assert batches.run([{"k": "k0", "v": 0}], process) == (20, 2)
        assert batches.run([{"k": "k0", "v": 1}], late) == (30, 3)


def test_a_first_batch_is_not_empty_because_the_servers_have_only_just_started(
    batches: MicroBatches, service: Service, application: str, announce: Announce
) -> None:
    announce(7)
    field = ValueSchema(1, (ValueField("threshold", "bigint"),))
    of = StateDescriptor(application, "rules", "q", StateKind.BROADCAST, 1, (KeyColumn("k", KeyType.STRING),), field)
    with fake_server() as (server, change):

        def reader(timeout: float) -> queryable.BroadcastReader:
            return queryable.BroadcastReader(
                f"{application}/rules",
                proxy=server.address,
                timeout=timeout,
                or_empty="k string, threshold long",
                config=service.config(application),
            )

        def restored() -> None:
            server.host(of, {("k0",): encode_row(1, [7])}).epoch = 1

        def process(data: DataFrame, batch_id: int) -> list[Row]:
            says = "though it has a changelog"
            raised_in_a_batch(lambda seconds: reader(seconds).read(data), 3.0, says, NotReady)
            restoring = threading.Timer(2.0, lambda: change(restored))
            restoring.start()
            read = reader(LONG_SECONDS).read(data).collect()
            restoring.join()
            return read

        assert batches.run([{"k": "k0", "v": 10}], process) == [("k0", 7)]


def test_a_batch_waits_for_a_proxy_that_is_not_there_yet(
    batches: MicroBatches, service: Service, application: str, announce: Announce, tmp_path: Path
) -> None:
    announce(1)
    (port,) = free_ports(1)
    late: list[Child] = []

    def reader(timeout: float) -> queryable.BroadcastReader:
        return queryable.BroadcastReader(f"{application}/rules", proxy=f"127.0.0.1:{port}", timeout=timeout)

    def start() -> None:
        late.append(
            start_client_proxy("late", port, servers=[service.server], directory=tmp_path, environ=dict(os.environ))
        )

    def process(data: DataFrame, batch_id: int) -> list[Row]:
        raised_in_a_batch(lambda seconds: reader(seconds).read(data), 3.0, "", ServerLost)
        starting = threading.Timer(2.0, start)
        starting.start()
        read = reader(LONG_SECONDS).read(data).collect()
        starting.join()
        return read

    try:
        assert batches.run([{"k": "k0", "v": 10}], process) == [("k0", 1)]
    finally:
        for child in late:
            child.terminate()
