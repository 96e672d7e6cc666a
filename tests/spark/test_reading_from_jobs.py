"""Jobs that read states: live ones beside their rows, and broadcast ones that stay the same for a batch."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from keyhole import Client
from keyhole.codec import encode_row
from keyhole.errors import InvalidConfiguration, KeyMismatch, NotReady, ServerLost, UnknownApplication, UnknownState
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_client_proxy
from keyhole.spark import queryable
from keyhole.testing.fake_server import FakeServer
from keyhole.types import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from tests.spark.test_state_kinds import Packed
from tests.support.streams import RunQuery, Service, Stream

SCHEMA = "k string, v long"


Announce = Callable[[int], None]


@pytest.fixture
def announce(spark: SparkSession, run_query: RunQuery, service: Service, application: str, tmp_path: Path) -> Announce:
    """Broadcasts a rule: from now on k0 has this threshold."""

    def announce(threshold: int) -> None:
        folder = tmp_path / f"rules-{threshold}"
        folder.mkdir()
        (folder / "0.json").write_text(json.dumps({"k": "k0", "threshold": threshold}))
        sink = queryable.broadcast("rules", key="k", config=service.config(application), on_new_checkpoint="continue")
        data = spark.readStream.schema("k string, threshold long").json(str(folder))
        run_query(data, "append", sink, name="rules", checkpoint=f"checkpoint-{threshold}")
        with Client(service.proxy) as client:
            assert client.get(application, "rules", "k0").value.threshold == threshold

    return announce


def test_rows_get_the_live_state_of_another_application(
    spark: SparkSession, stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    schema = "k string, d date, tags array<string>, of map<string,int>, inner struct<a:int,b:string>, n decimal(10,2)"
    row = {"k": "k0", "d": "2026-01-02", "tags": ["x"], "of": {"a": 1}, "inner": {"a": 1, "b": "y"}, "n": "1.50"}
    sink = queryable.value("rich", key=["k", "d"], config=service.config(application))
    run_query(stream(schema, [[row]]), "append", sink)
    rows = spark.createDataFrame(
        [("k0", date(2026, 1, 2)), ("k1", date(2026, 1, 2)), (None, date(2026, 1, 2)), ("k0", date(2026, 1, 2))],
        "name string, day date",
    )
    found = queryable.lookup(rows, f"{application}/rich", key=["name", "day"], proxy=service.proxy).collect()
    assert [one.name for one in found if one.rich is not None] == ["k0", "k0"]
    rich = next(one.rich for one in found if one.rich is not None)
    assert rich == Row(tags=["x"], of={"a": 1}, inner=Row(a=1, b="y"), n=rich.n)
    assert str(rich.n) == "1.50"
    with pytest.raises(KeyMismatch, match="Cast them"):
        queryable.lookup(rows, f"{application}/rich", key=["day", "name"], proxy=service.proxy)
    with pytest.raises(InvalidConfiguration, match="name another one with into="):
        queryable.lookup(rows, f"{application}/rich", key=["name", "day"], proxy=service.proxy, into="day")
    with pytest.raises(UnknownState):
        queryable.lookup(rows, f"{application}/poor", key="name", proxy=service.proxy)


def test_a_list_is_not_looked_up_and_the_columns_of_the_rows_may_have_any_name(
    spark: SparkSession, stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    config = service.config(application)
    sink = queryable.together(
        queryable.value("last", key="k", config=config), queryable.list("log", key="k", max_length=3, config=config)
    )
    run_query(stream(SCHEMA, [[{"k": "k0", "v": 1}]]), "append", sink)
    rows = spark.createDataFrame([("k0", 1)], "`a.b` string, `c``d` int")
    (found,) = queryable.lookup(rows, f"{application}/last", key="a.b", proxy=service.proxy).collect()
    assert found.asDict() == {"a.b": "k0", "c`d": 1, "last": Row(v=1)}
    with pytest.raises(InvalidConfiguration, match=f"state {application}/log is a list, which has no one value"):
        queryable.lookup(rows, f"{application}/log", key="a.b", proxy=service.proxy)


def test_a_stream_is_enriched_batch_by_batch(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    sink = queryable.value("last", key="k", config=service.config(application))
    rows = [[{"k": f"k{n}", "v": n} for n in range(20)]]
    run_query(stream(SCHEMA, rows), "append", sink, checkpoint="first")
    seen: list[Row] = []

    def enrich(data: DataFrame, batch_id: int) -> None:
        seen.extend(queryable.lookup(data, f"{application}/last", key="k", proxy=service.proxy, into="was").collect())

    run_query(stream(SCHEMA, rows), "append", enrich, checkpoint="second")
    assert sorted((row.k, row.was.v) for row in seen) == sorted((f"k{n}", n) for n in range(20))


def test_rules_that_a_job_has_encoded_are_read_as_its_bytes(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    data = stream(SCHEMA, [[{"k": "k0", "v": 1}, {"k": "k1", "v": 2}]])
    sink = queryable.broadcast("rules", key="k", codec=Packed(), config=service.config(application))
    run_query(data, "append", sink, checkpoint="rules")
    rules = queryable.BroadcastReader(f"{application}/rules", proxy=service.proxy)
    read: list[tuple[str, bytes]] = []

    def process(batch: DataFrame, batch_id: int) -> None:
        read.extend((row.k, bytes(row.value)) for row in rules.read(batch).collect())

    run_query(data, "append", process, checkpoint="elements")
    assert read == [("k0", b"\xff\x001"), ("k1", b"\xff\x002")]


def test_a_batch_that_is_run_again_reads_the_rules_that_it_read_before(
    stream: Stream, run_query: RunQuery, service: Service, application: str, announce: Announce
) -> None:
    announce(1)
    rules = queryable.BroadcastReader(f"{application}/rules", proxy=service.proxy)
    read: list[tuple[int, int, int]] = []

    class Broken(Exception):
        pass

    def process(data: DataFrame, batch_id: int) -> None:
        found = rules.read(data)
        (rule,) = data.join(F.broadcast(found), "k").collect()
        read.append((batch_id, rule.threshold, rules.epoch(data)))
        if len(read) == 2:
            raise Broken("as if it was killed, after its first stage")

    rows = [[{"k": "k0", "v": 10}], [{"k": "k0", "v": 11}], [{"k": "k0", "v": 12}]]
    elements = stream(SCHEMA, rows)
    with pytest.raises(StreamingQueryException, match="as if it was killed"):
        run_query(elements, "append", process, checkpoint="elements")
    announce(2)
    run_query(elements, "append", process, checkpoint="elements")
    assert [(batch, threshold) for batch, threshold, _ in read] == [(0, 1), (1, 1), (1, 1), (2, 2)]
    assert read[1][2] == read[2][2] < read[3][2]


def test_a_driver_that_wakes_late_changes_nothing_of_what_its_successor_has_read(
    stream: Stream,
    run_query: RunQuery,
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

    run_query(stream(SCHEMA, [[{"k": "k0", "v": 10}]]), "append", process, checkpoint="elements")
    assert read == [[("k0", 1)]] * 3


def test_nothing_broadcast_yet_is_refused_or_read_as_no_entries_again_too(
    stream: Stream, run_query: RunQuery, service: Service, application: str, announce: Announce
) -> None:
    of, columns = f"{application}/rules", "k string, threshold long"
    rules = queryable.BroadcastReader(of, proxy=service.proxy, or_empty=columns, config=service.config(application))
    read: list[tuple[int, list[tuple[str, int]], bool]] = []

    def process(data: DataFrame, batch_id: int) -> None:
        if not read:
            with pytest.raises((UnknownApplication, UnknownState)):
                queryable.BroadcastReader(of, proxy=service.proxy).read(data)
        read.append((batch_id, [tuple(row) for row in rules.read(data).collect()], rules.epoch(data) > 0))
        if len(read) == 1:
            raise ValueError("as if it was killed")

    elements = stream(SCHEMA, [[{"k": "k0", "v": 10}], [{"k": "k0", "v": 11}]])
    with pytest.raises(StreamingQueryException, match="as if it was killed"):
        run_query(elements, "append", process, checkpoint="elements")
    announce(1)
    run_query(elements, "append", process, checkpoint="elements")
    assert read == [(0, [], False), (0, [], False), (1, [("k0", 1)], True)]


def test_what_batches_have_read_is_kept_as_long_as_spark_keeps_their_logs(
    spark: SparkSession,
    stream: Stream,
    run_query: RunQuery,
    service: Service,
    application: str,
    announce: Announce,
    tmp_path: Path,
) -> None:
    announce(1)
    rules = queryable.BroadcastReader(f"{application}/rules", proxy=service.proxy)
    kept = "spark.sql.streaming.minBatchesToRetain"
    before = spark.conf.get(kept)
    spark.conf.set(kept, "2")
    try:
        elements = stream(SCHEMA, [[{"k": "k0", "v": batch}] for batch in range(4)])
        run_query(elements, "append", lambda data, _: rules.read(data), checkpoint="elements")
    finally:
        spark.conf.set(kept, str(before))
    folder = tmp_path / "elements" / "keyhole" / "broadcast" / f"{application}.rules"
    assert sorted(path.name for path in folder.glob("[0-9]*")) == ["2", "3"]


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
    stream: Stream, run_query: RunQuery
) -> None:
    field = ValueSchema(1, (ValueField("threshold", "bigint"),))
    rules = StateDescriptor("rules", "rules", "q", StateKind.BROADCAST, 1, (KeyColumn("k", KeyType.STRING),), field)
    seen: list[tuple[int, int, int]] = []
    with fake_server() as (server, change):

        def broadcast(epoch: int, threshold: int) -> None:
            server.host(rules, {("k0",): encode_row(1, [threshold])}).epoch = epoch

        reader = queryable.BroadcastReader(
            "rules/rules", proxy=server.address, timeout=1.0, or_empty="k string, threshold long"
        )

        def process(data: DataFrame, batch_id: int) -> None:
            ((_, threshold),) = reader.read(data).collect()
            seen.append((batch_id, threshold, reader.epoch(data)))

        elements = stream(SCHEMA, [[{"k": "k0", "v": n}] for n in range(2)])
        change(lambda: broadcast(2, 20))

        def first_only(data: DataFrame, batch_id: int) -> None:
            process(data, batch_id)
            if batch_id == 0:
                change(lambda: broadcast(1, 10))

        with pytest.raises(StreamingQueryException, match="at epoch 1"):
            run_query(elements, "append", first_only)
        change(server.states.clear)
        with pytest.raises(StreamingQueryException, match="rules"):
            run_query(elements, "append", process)
        change(lambda: broadcast(3, 30))
        run_query(elements, "append", process)
    assert seen == [(0, 20, 2), (1, 30, 3)]


def test_a_first_batch_is_not_empty_because_the_servers_have_only_just_started(
    stream: Stream, run_query: RunQuery, service: Service, application: str, announce: Announce
) -> None:
    announce(7)
    field = ValueSchema(1, (ValueField("threshold", "bigint"),))
    of = StateDescriptor(application, "rules", "q", StateKind.BROADCAST, 1, (KeyColumn("k", KeyType.STRING),), field)
    read: list[list[Row]] = []
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

        def process(data: DataFrame, batch_id: int) -> None:
            with pytest.raises(NotReady, match="though it has a changelog"):
                reader(1.0).read(data)
            restoring = threading.Timer(2.0, lambda: change(restored))
            restoring.start()
            read.append(reader(60.0).read(data).collect())
            restoring.join()

        run_query(stream(SCHEMA, [[{"k": "k0", "v": 10}]]), "append", process)
    assert read == [[("k0", 7)]]


def test_a_batch_waits_for_a_proxy_that_is_not_there_yet(
    stream: Stream, run_query: RunQuery, service: Service, application: str, announce: Announce, tmp_path: Path
) -> None:
    announce(1)
    (port,) = free_ports(1)
    rules = queryable.BroadcastReader(f"{application}/rules", proxy=f"127.0.0.1:{port}")
    late: list[Child] = []
    read: list[list[Row]] = []

    def start() -> None:
        late.append(
            start_client_proxy("late", port, servers=[service.server], directory=tmp_path, environ=dict(os.environ))
        )

    def process(data: DataFrame, batch_id: int) -> None:
        with pytest.raises(ServerLost):
            queryable.BroadcastReader(f"{application}/rules", proxy=f"127.0.0.1:{port}", timeout=0.5).read(data)
        starting = threading.Timer(2.0, start)
        starting.start()
        read.append(rules.read(data).collect())
        starting.join()

    try:
        run_query(stream(SCHEMA, [[{"k": "k0", "v": 10}]]), "append", process)
    finally:
        for child in late:
            child.terminate()
    assert read == [[("k0", 1)]]


def test_only_a_broadcast_state_is_read_whole(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    rows = [[{"k": "k0", "v": 1}]]
    sink = queryable.value("last", key="k", config=service.config(application))
    run_query(stream(SCHEMA, rows), "append", sink, checkpoint="first")
    reader = queryable.BroadcastReader(f"{application}/last", proxy=service.proxy)

    def process(data: DataFrame, batch_id: int) -> None:
        reader.read(data)

    with pytest.raises(StreamingQueryException, match="only a broadcast state can be read whole"):
        run_query(stream(SCHEMA, rows), "append", process, checkpoint="second")
