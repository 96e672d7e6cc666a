"""Every kind of state from real streaming queries, read through a proxy, and what plain Python makes of the rows."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from keyhole import Client
from keyhole.errors import InvalidConfiguration, ValueMismatch
from keyhole.spark import queryable
from tests.support.streams import RunQuery, Service, Stream

SCHEMA = "k string, m int, v long, op string"
KEYS = [f"k{number}" for number in range(5)]


def random_rows(batches: int, rows: int = 60, seed: int = 1) -> list[list[dict[str, Any]]]:
    """Each entry (k, m) at most once in a batch."""
    draw = random.Random(seed)
    places = [(k, m) for k in KEYS for m in range(-20, 20)]
    return [[{"k": k, "m": m, "v": draw.randrange(1000)} for k, m in draw.sample(places, rows)] for _ in range(batches)]


def everything(client: Client, application: str, state: str) -> dict[str, dict[Any, Any]]:
    return {key: {entry.map_key: entry.value.v for entry in client.scan(application, state, key)} for key in KEYS}


def test_a_map_has_the_last_row_of_each_key_and_map_key_in_order(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    batches = random_rows(3)
    sink = queryable.map("m", key="k", map_key="m", value=["v"], key_groups=8, config=service.config(application))
    run_query(stream(SCHEMA, batches), "append", sink)
    expected: dict[str, dict[int, int]] = {key: {} for key in KEYS}
    for row in (row for batch in batches for row in batch):
        expected[row["k"]][row["m"]] = row["v"]
    with Client(service.proxy) as client:
        assert everything(client, application, "m") == expected
        of = sorted(expected["k0"])
        assert [entry.map_key for entry in client.scan(application, "m", "k0")] == of
        within = client.scan(application, "m", "k0", start=-3, stop=7, descending=True, limit=4)
        assert [entry.map_key for entry in within] == [m for m in reversed(of) if -3 <= m < 7][:4]
        assert client.get(application, "m", ("k0", of[0])).value.v == expected["k0"][of[0]]
        assert not client.get(application, "m", ("k0", 99)).found
        assert len(client.scan(application, "m", "absent")) == 0


def test_rows_put_delete_and_clear_entries_of_a_map(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    def entry(k: str, m: int | None, v: int | None = None, op: str | None = None) -> dict[str, Any]:
        return {"k": k, "m": m, "v": v, "op": op}

    batches = [
        [entry("k0", 1, 10), entry("k0", 2, 20), entry("k1", 1, 11), entry("k2", 1, 12)],
        [entry("k0", 1, op="delete"), entry("k0", 9, op="delete"), entry("k1", None, op="clear"), entry("k1", 5, 55)],
    ]
    sink = queryable.map("m", key="k", map_key="m", op="op", key_groups=8, config=service.config(application))
    run_query(stream(SCHEMA, batches), "append", sink)
    with Client(service.proxy) as client:
        assert everything(client, application, "m") == {"k0": {2: 20}, "k1": {5: 55}, "k2": {1: 12}, "k3": {}, "k4": {}}


def test_of_rows_with_an_order_the_last_one_counts_deletions_included(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    rows = [
        {"k": "k0", "m": 3, "v": 30},
        {"k": "k0", "m": 2, "op": "delete"},
        {"k": "k1", "m": 5, "op": "delete"},
        {"k": "k1", "m": 4, "v": 40},
    ]
    sink = queryable.value("last", key="k", order_by="m", op="op", config=service.config(application))
    run_query(stream(SCHEMA, [rows]), "append", sink)
    with Client(service.proxy) as client:
        kept, gone = client.get_many(application, "last", ["k0", "k1"])
        assert (kept.value.v, gone.found) == (30, False)


@pytest.mark.parametrize("max_length", [None, 7])
def test_a_list_has_the_rows_of_all_batches_in_order(
    stream: Stream, run_query: RunQuery, service: Service, application: str, max_length: int | None
) -> None:
    batches = random_rows(4)
    sink = queryable.list(
        "log",
        key="k",
        value=["v"],
        order_by="m",
        max_length=max_length,
        unbounded=max_length is None,
        key_groups=8,
        config=service.config(application),
    )
    run_query(stream(SCHEMA, batches), "append", sink)
    expected: dict[str, list[int]] = defaultdict(list)
    for batch in batches:
        for row in sorted(batch, key=lambda row: row["m"]):
            expected[row["k"]].append(row["v"])
    with Client(service.proxy) as client:
        for key in KEYS:
            found = client.scan(application, "log", key)
            assert [element.v for element in found.values] == expected[key][-max_length if max_length else 0 :]
            assert [entry.map_key for entry in found] == sorted(entry.map_key for entry in found)


def test_a_list_is_replaced_and_cleared(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    def element(k: str, v: int | None, op: str | None = None) -> dict[str, Any]:
        return {"k": k, "v": v, "op": op}

    batches = [
        [element("k0", 1), element("k0", 2), element("k1", 3), element("k2", 4)],
        [element("k0", 5, "replace"), element("k0", 6, "replace"), element("k1", None, "clear"), element("k2", 7)],
    ]
    sink = queryable.list(
        "log", key="k", value=["v"], order_by="v", op="op", max_length=10, config=service.config(application)
    )
    run_query(stream(SCHEMA, batches), "append", sink)
    with Client(service.proxy) as client:
        found = {key: [element.v for element in client.scan(application, "log", key).values] for key in KEYS[:3]}
    assert found == {"k0": [5, 6], "k1": [], "k2": [4, 7]}


class Mean:
    """Sum and number of the values."""

    commutative = True

    def create(self) -> list[int]:
        return [0, 0]

    def add(self, accumulator: list[int], row: Any) -> list[int]:
        accumulator[0] += row.v
        accumulator[1] += 1
        return accumulator

    def merge(self, one: list[int], other: list[int]) -> list[int]:
        return [one[0] + other[0], one[1] + other[1]]

    def result(self, accumulator: list[int]) -> Mapping[str, Any]:
        return {"mean": accumulator[0] / accumulator[1], "rows": accumulator[1]}


def test_an_aggregate_is_the_result_of_all_rows(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    batches = random_rows(4)
    sink = queryable.aggregating(
        "mean",
        key="k",
        aggregator=Mean(),
        result="mean double, rows bigint",
        value=["v"],
        key_groups=8,
        config=service.config(application),
    )
    run_query(stream(SCHEMA, batches), "append", sink)
    values = defaultdict(list)
    for row in (row for batch in batches for row in batch):
        values[row["k"]].append(row["v"])
    with Client(service.proxy) as client:
        for key in KEYS:
            found = client.get(application, "mean", key).value
            assert (found.rows, found.mean) == (len(values[key]), sum(values[key]) / len(values[key]))


class Wrong(Mean):
    def result(self, accumulator: list[int]) -> Mapping[str, Any]:
        return {"mean": 1.0}


@pytest.mark.parametrize(
    ("aggregator", "result", "told", "failure"),
    [
        (
            Wrong(),
            "mean double, rows bigint",
            "the result of the aggregator of state 'mean' has the fields",
            ValueMismatch,
        ),
        (
            Mean(),
            "mean dubble",
            "result: 'mean dubble' is no schema, as 'n bigint, mean double'",
            InvalidConfiguration,
        ),
    ],
    ids=["not as declared", "no schema"],
)
def test_a_result_that_can_not_be_is_refused(
    stream: Stream,
    run_query: RunQuery,
    service: Service,
    application: str,
    aggregator: Mean,
    result: str,
    told: str,
    failure: type[Exception],
) -> None:
    sink = queryable.aggregating(
        "mean", key="k", aggregator=aggregator, result=result, config=service.config(application)
    )
    with pytest.raises(StreamingQueryException, match=told):
        run_query(stream(SCHEMA, random_rows(1)), "append", sink)
    assert isinstance(sink.failure, failure)


class Packed:
    """Values as the job's own bytes."""

    def encode(self, row: Any) -> bytes:
        return b"\xff\x00" + str(row.v).encode()


ENCODED: dict[str, Callable[..., queryable.Sink]] = {
    "value": queryable.value,
    "map": partial(queryable.map, map_key="m"),
    "list": partial(queryable.list, order_by="m", max_length=3),
    "broadcast": queryable.broadcast,
}


@pytest.mark.parametrize("kind", ENCODED)
def test_values_may_be_encoded_by_the_job_itself(
    stream: Stream, run_query: RunQuery, service: Service, application: str, kind: str
) -> None:
    sink = ENCODED[kind](
        "packed", key="k", value=["v"], codec=Packed(), delete_when="v < 0", config=service.config(application)
    )
    batches = [
        [{"k": "a", "m": 1, "v": 1}, {"k": "b", "m": 1, "v": 2}],
        [{"k": "a", "m": 2, "v": 3}, {"k": "b", "m": 1, "v": -1}],
    ]
    run_query(stream(SCHEMA, batches), "append", sink)
    has_entries = kind in ("map", "list")
    with Client(service.proxy) as client:
        for key, expected in {"a": [b"\xff\x001", b"\xff\x003"], "b": []}.items():
            if has_entries:
                assert [element.value for element in client.scan(application, "packed", key).values] == expected
            else:
                answer = client.get(application, "packed", key)
                assert ([answer.value.value] if answer.found else []) == expected[-1:]
        assert [field.type for field in client.describe_state(application, "packed").value.fields] == ["binary"]


class Longest:
    """The most that a row had; the columns' names are none that attributes can have."""

    def create(self) -> int:
        return 0

    def add(self, accumulator: int, row: Any) -> int:
        return max(accumulator, row._0)

    def merge(self, one: int, other: int) -> int:
        return max(one, other)

    def result(self, accumulator: int) -> tuple[int]:
        return (accumulator,)


class Kept:
    """Keeps what its subtask has seen."""

    def process(self, subtask: queryable.Subtask, elements: list[Any], rows: Iterator[Any]) -> list[Any]:
        return elements + [row._3 for row in rows]

    def result(self, elements: Sequence[Any]) -> tuple[int]:
        return (sum(elements),)


def test_columns_may_have_any_name(stream: Stream, run_query: RunQuery, service: Service, application: str) -> None:
    key, map_key, order, value = "a.b", "a`b", "order by", "größe.in m"
    of: dict[str, Any] = {"key": key, "config": service.config(application)}
    sink = queryable.together(
        queryable.value("value", order_by=order, delete_when="`order by` < 0", **of),
        queryable.map("map", map_key=map_key, value=value, op="o.p", **of),
        queryable.list("list", order_by=order, value=[value], unbounded=True, **of),
        queryable.reducing("reducing", reducers={order: "max", value: f"max_by({order})"}, **of),
        queryable.aggregating("aggregating", aggregator=Longest(), value=[value], result="`n.n` bigint", **of),
        queryable.list("coded", codec=Coded(), order_by=order, value=[value], unbounded=True, **of),
        queryable.operator("operator", operator=Kept(), result="n bigint", subtasks=1, config=of["config"]),
    )
    rows = [{key: "k", map_key: m, order: 10 - m, value: m * m, "o.p": None} for m in range(3)]
    schema = "`a.b` string, `a``b` int, `order by` long, `größe.in m` long, `o.p` string"
    run_query(stream(schema, [rows]), "append", sink)
    with Client(service.proxy) as client:
        assert client.get(application, "value", "k").value[value] == 0
        assert [entry.value[value] for entry in client.scan(application, "map", "k")] == [0, 1, 4]
        assert [entry.value[value] for entry in client.scan(application, "list", "k")] == [4, 1, 0]
        assert client.get(application, "reducing", "k").value.asdict() == {order: 10, value: 0}
        assert client.get(application, "aggregating", "k").value["n.n"] == 4
        assert [entry.value.value for entry in client.scan(application, "coded", "k")] == [b"4", b"1", b"0"]
        assert client.get(application, "operator", 0).value.n == 5


class Coded:
    """The bytes of one value."""

    def encode(self, row: Any) -> bytes:
        return str(row._0).encode()


@pytest.mark.parametrize("condition", ["v <<< 0", "w < 0", "v + 1"], ids=["no SQL", "no column", "no condition"])
def test_a_delete_when_that_is_no_condition_is_refused(
    stream: Stream, run_query: RunQuery, service: Service, application: str, condition: str
) -> None:
    sink = queryable.value("s", key="k", delete_when=condition, config=service.config(application))
    with pytest.raises(StreamingQueryException, match=r"state 's': delete_when is no condition on the batch's columns"):
        run_query(stream(SCHEMA, random_rows(1)), "append", sink)
    assert isinstance(sink.failure, InvalidConfiguration)


def test_windows_are_entries_of_a_map_until_the_watermark_has_passed_their_ttl(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)

    def at(k: str, minutes: int) -> dict[str, Any]:
        return {"k": k, "at": (start + timedelta(minutes=minutes)).isoformat()}

    # The watermark is an hour behind, and Spark drops rows by that of the batch before: in the third one the row of k0
    # at 5 minutes comes too late for its window, that at 130 just in time.
    batches = [
        [at(KEYS[n % 2], 7 * n) for n in range(30)],
        [at("k1", 220)],
        [at("k0", 5), at("k0", 130), at("k1", 9 * 60)],
        [at("k0", 9 * 60 + 1)],
    ]
    counts = (
        stream("k string, at timestamp", batches)
        .withWatermark("at", "1 hour")
        .groupBy("k", F.window("at", "1 hour").alias("w"))
        .count()
        .select("k", F.col("w.start").alias("hour"), "count")
    )
    lives: dict[str, Any] = {"ttl": timedelta(hours=4), "ttl_clock": "event_time"}
    config = service.config(application)
    sink = queryable.map("per_hour", key="k", map_key="hour", key_groups=8, config=config, **lives)
    seen: list[dict[int, int]] = []

    def feed(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)
        with Client(service.proxy) as client:
            of = client.scan(application, "per_hour", "k0")
            seen.append({(entry.map_key - start) // timedelta(hours=1): entry.value["count"] for entry in of})

    run_query(counts, "update", feed)
    # By hour of k0: of the rows at 0, 14, 28 minutes and so on.
    hours = {hour: sum(minute // 60 == hour for minute in range(0, 210, 14)) for hour in range(4)}
    written_again = {2: hours[2] + 1}
    assert seen[:3] == [hours, hours, hours | written_again]
    # The watermark is at eight hours. After the first batch it was at two and a half, after the third where it is now.
    assert seen[3] == written_again | {9: 1}


def test_several_states_of_one_query_have_one_epoch_and_one_scan_of_the_source(
    stream: Stream, run_query: RunQuery, service: Service, application: str, spark: Any
) -> None:
    batches = random_rows(2)
    scanned = spark.sparkContext.accumulator(0)

    @F.udf("long", useArrow=False)
    def counted(v: int) -> int:
        scanned.add(1)
        return v

    def per_map_key(data: DataFrame) -> DataFrame:
        return data.groupBy("m").agg(F.sum("v").alias("total"))

    config = service.config(application)
    sink = queryable.together(
        queryable.map("entries", key="k", map_key="m", value=["v"], key_groups=8, config=config),
        queryable.reducing("totals", key="m", reducers={"total": "sum"}, key_groups=4, config=config).of(per_map_key),
    )
    run_query(stream(SCHEMA, batches).withColumn("v", counted("v")), "append", sink)
    rows = [row for batch in batches for row in batch]
    assert scanned.value == len(rows), "each row of the source is computed once"
    expected: dict[int, int] = defaultdict(int)
    for row in rows:
        expected[row["m"]] += row["v"]
    with Client(service.proxy) as client:
        answers = client.get_many(application, "totals", sorted(expected))
        assert [answer.value.total for answer in answers] == [expected[m] for m in sorted(expected)]
        assert {answer.epoch for answer in answers} == {client.scan(application, "entries", "k0").epoch} == {2}


def test_a_broadcast_state_is_one_key_group(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    sink = queryable.broadcast("rules", key="k", value=["v"], config=service.config(application))
    run_query(stream(SCHEMA, [[{"k": "a", "v": 1}, {"k": "b", "v": 2}]]), "append", sink)
    with Client(service.proxy) as client:
        assert client.describe_state(application, "rules").key_groups == 1
        assert [answer.value.v for answer in client.get_many(application, "rules", ["a", "b"])] == [1, 2]
        whole = client.scan(application, "rules", ())
        assert [(entry.map_key, entry.value.v) for entry in whole] == [("a", 1), ("b", 2)]
        assert [entry.map_key for entry in client.scan(application, "rules", (), start="b")] == ["b"]


def test_an_expired_entry_is_not_returned(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)

    def at(k: str, hours: int) -> dict[str, Any]:
        return {"k": k, "at": (start + timedelta(hours=hours)).isoformat()}

    # The watermark is 10 minutes behind, and counts from the next batch on.
    batches = [[at("k0", 0)], [at("k1", 1), at("k2", 1)], [at("k1", 5)], [at("k3", 1)]]
    sink = queryable.value(
        "seen",
        key="k",
        ttl=timedelta(hours=2),
        ttl_clock="event_time",
        key_groups=8,
        order_by="at",
        config=service.config(application),
    )
    run_query(stream("k string, at timestamp", batches).withWatermark("at", "10 minutes"), "append", sink)
    with Client(service.proxy) as client:
        found = client.get_many(application, "seen", ["k0", "k1", "k2", "k3"])
    assert [answer.found for answer in found] == [False, True, False, True]


def test_a_ttl_by_event_time_needs_a_watermark(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    sink = queryable.value(
        "seen", key="k", ttl=timedelta(hours=1), ttl_clock="event_time", config=service.config(application)
    )
    with pytest.raises(StreamingQueryException, match="the query has no watermark: call withWatermark"):
        run_query(stream(SCHEMA, random_rows(1)), "append", sink)
    assert isinstance(sink.failure, InvalidConfiguration)


def test_a_row_that_says_something_else_than_its_kind_can_is_refused(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    sink = queryable.value("last", key="k", op="op", config=service.config(application))
    rows = [{"k": "a", "op": "append"}]
    with pytest.raises(StreamingQueryException, match="a row says 'append' in its op column"):
        run_query(stream(SCHEMA, [rows]), "append", sink)


def at_minute(minute: int) -> str:
    return (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)).isoformat()


def test_sessions_are_entries_once_they_are_closed(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    events = [[{"k": "a", "at": at_minute(m)} for m in (0, 5, 30, 33, 36)], [{"k": "b", "at": at_minute(300)}], []]
    sessions = (
        stream("k string, at timestamp", events)
        .withWatermark("at", "1 hour")
        .groupBy("k", F.session_window("at", "10 minutes").alias("w"))
        .count()
        .select("k", F.col("w.start").alias("since"), F.col("w.end").alias("until"), "count")
    )
    sink = queryable.map("sessions", key="k", map_key="since", key_groups=8, config=service.config(application))
    run_query(sessions, "append", sink)
    with Client(service.proxy) as client:
        found = client.scan(application, "sessions", "a")
        assert [(entry.map_key.minute, entry.value.until.minute, entry.value["count"]) for entry in found] == [
            (0, 15, 2),
            (30, 46, 3),
        ]
        assert len(client.scan(application, "sessions", "b")) == 0, "still open"


def test_what_drop_duplicates_lets_through_is_a_value(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    events = [
        [{"k": "a", "at": at_minute(0), "v": 1}, {"k": "b", "at": at_minute(1), "v": 2}],
        [{"k": "a", "at": at_minute(2), "v": 3}, {"k": "c", "at": at_minute(3), "v": 4}],
    ]
    firsts = stream("k string, at timestamp, v int", events).withWatermark("at", "1 hour")
    sink = queryable.value("firsts", key="k", key_groups=8, config=service.config(application))
    run_query(firsts.dropDuplicatesWithinWatermark(["k"]), "append", sink)
    with Client(service.proxy) as client:
        found = client.get_many(application, "firsts", ["a", "b", "c"])
    assert [answer.value.v for answer in found] == [1, 2, 4]


def test_the_pairs_of_a_stream_stream_join_are_entries_of_a_map(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    events = [
        [{"k": "a", "at": at_minute(0), "v": 0}, {"k": "b", "at": at_minute(1), "v": 0}],
        [{"k": "a", "at": at_minute(20), "v": 1}, {"k": "a", "at": at_minute(90), "v": 1}],
        [{"k": "b", "at": at_minute(30), "v": 1}],
    ]
    source = stream("k string, at timestamp, v int", events).withWatermark("at", "2 hours")
    shown = source.filter("v = 0").select(F.col("k").alias("ad"), F.col("at").alias("shown"))
    clicks = source.filter("v = 1").select("k", "at")
    joined = shown.join(clicks, F.expr("k = ad AND at BETWEEN shown AND shown + INTERVAL 1 HOUR")).drop("k")
    sink = queryable.map("clicks", key="ad", map_key="at", key_groups=8, config=service.config(application))
    run_query(joined, "append", sink)
    with Client(service.proxy) as client:
        found = {ad: [entry.map_key.minute for entry in client.scan(application, "clicks", ad)] for ad in ("a", "b")}
    assert found == {"a": [20], "b": [30]}


def test_several_states_are_made_of_one_stateful_batch(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    """The maximum of strings makes Spark sort, and such a batch can't be persisted as it is."""
    rows = [[{"k": f"k{n % 5}", "m": n, "v": n} for n in range(start, start + 30)] for start in (0, 30)]
    highest = (
        stream(SCHEMA, rows)
        .groupBy("k")
        .agg(F.max(F.col("v").cast("string")).alias("word"), F.count("*").alias("events"))
    )
    config = service.config(application)
    sink = queryable.together(
        queryable.value("words", key="k", value=["word"], key_groups=8, config=config),
        queryable.value("events", key="k", value=["events"], key_groups=8, config=config),
        queryable.map("by_count", key="events", map_key="k", key_groups=8, config=config),
    )
    run_query(highest, "update", sink)
    words = {key: max(str(row["v"]) for of in rows for row in of if row["k"] == key) for key in KEYS}
    with Client(service.proxy) as client:
        assert {key: client.get(application, "words", key).value.word for key in KEYS} == words
        assert {client.get(application, "events", key).value.events for key in KEYS} == {12}
        assert [entry.map_key for entry in client.scan(application, "by_count", 12)] == KEYS
