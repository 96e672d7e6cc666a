"""Every kind of state from real streaming queries, read through a proxy, and what plain Python makes of the rows."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from keyhole.config import JobConfig
from keyhole.errors import InvalidConfiguration, KeyholeError, ValueMismatch
from keyhole.spark import queryable
from keyhole.spark.driver.data_frames import classic
from keyhole.spark.sink import Sink
from keyhole.spark.write_path.epoch_states import EpochStates
from tests.support.scenario import Scenario, Scenarios, only

SCHEMA = "k string, m int, v long, op string"
KEYS = [f"k{number}" for number in range(5)]
START = datetime(2026, 1, 1, tzinfo=UTC)


def random_rows(batches: int, rows: int = 60, seed: int = 1) -> list[list[dict[str, Any]]]:
    """Each entry (k, m) at most once in a batch."""
    draw = random.Random(seed)
    places = [(k, m) for k in KEYS for m in range(-20, 20)]
    return [[{"k": k, "m": m, "v": draw.randrange(1000)} for k, m in draw.sample(places, rows)] for _ in range(batches)]


MEAN = "mean double, rows bigint"


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


class Packed:
    """Values as the job's own bytes."""

    def encode(self, row: Any) -> bytes:
        return b"\xff\x00" + str(row.v).encode()


ENCODED: dict[str, Callable[..., Sink]] = {
    "value": partial(queryable.value, key_groups=4),
    "map": partial(queryable.map, map_key="m", key_groups=4),
    "list": partial(queryable.list, order_by="m", max_length=3, key_groups=4),
    "broadcast": queryable.broadcast,
}


def per_map_key(rows: DataFrame) -> DataFrame:
    return rows.groupBy("m").agg(F.sum("v").alias("total"))


def every_kind(config: JobConfig) -> Sink:
    """Of the random rows, and of those whose column `of` names the state."""
    of: dict[str, Any] = {"key": "k", "key_groups": 4, "config": config}
    log: dict[str, Any] = {"value": ["v"], "order_by": "m", **of}
    drawn = only("random")
    return queryable.together(
        queryable.map("m", map_key="m", value=["v"], **of).of(drawn),
        queryable.list("log", unbounded=True, **log).of(drawn),
        queryable.list("log_of_7", max_length=7, **log).of(drawn),
        queryable.aggregating("mean", aggregator=Mean(), result=MEAN, value=["v"], **of).of(drawn),
        queryable.reducing("totals", reducers={"total": "sum"}, **{**of, "key": "m"}).of(per_map_key).of(drawn),
        queryable.map("edited", map_key="m", op="op", **of).of(only("edited")),
        queryable.value("last", order_by="m", op="op", **of).of(only("last")),
        queryable.list("replaced", value=["v"], order_by="v", op="op", max_length=10, **of).of(only("replaced")),
        queryable.broadcast("rules", key="k", value=["v"], config=config).of(only("rules")),
        *(
            make(f"packed_{kind}", key="k", value=["v"], codec=Packed(), delete_when="v < 0", config=config).of(
                only("packed")
            )
            for kind, make in ENCODED.items()
        ),
    )


def row(of: str, k: str, m: int | None = None, v: int | None = None, op: str | None = None) -> dict[str, Any]:
    return {"of": of, "k": k, "m": m, "v": v, "op": op}


DRAWN = random_rows(4)
DIRECTED = [
    [
        *(
            row("edited", "k0", 1, 10),
            row("edited", "k0", 2, 20),
            row("edited", "k1", 1, 11),
            row("edited", "k2", 1, 12),
        ),
        *(row("last", "k0", 3, 30), row("last", "k0", 2, op="delete")),
        *(row("last", "k1", 5, op="delete"), row("last", "k1", 4, 40)),
        *(
            row("replaced", "k0", v=1),
            row("replaced", "k0", v=2),
            row("replaced", "k1", v=3),
            row("replaced", "k2", v=4),
        ),
        *(row("rules", "a", v=1), row("rules", "b", v=2)),
        *(row("packed", "a", 1, 1), row("packed", "b", 1, 2)),
    ],
    [
        *(row("edited", "k0", 1, op="delete"), row("edited", "k0", 9, op="delete")),
        *(row("edited", "k1", op="clear"), row("edited", "k1", 5, 55)),
        *(row("replaced", "k0", v=5, op="replace"), row("replaced", "k0", v=6, op="replace")),
        *(row("replaced", "k1", op="clear"), row("replaced", "k2", v=7)),
        *(row("packed", "a", 2, 3), row("packed", "b", 1, -1)),
    ],
]
REFUSED = row("last", "k0", op="append")


@dataclass(frozen=True)
class Ran:
    """A query of every kind, which the first row of its fifth batch has ended.

    Attributes:
        scanned: How many rows the source had computed after each epoch.
        ended: What ended it, as Spark tells it.
        failure: The same, as the sink has it.
        unwatermarked: What a state whose ttl goes by event time said of its first batch.
    """

    scenario: Scenario
    scanned: Sequence[int]
    ended: str
    failure: KeyholeError | None
    unwatermarked: str

    def everything(self, state: str) -> dict[str, dict[Any, Any]]:
        return {key: {entry.map_key: entry.value.v for entry in self.scenario.scan(state, key)} for key in KEYS}


@pytest.fixture(scope="module")
def ran(scenarios: Scenarios) -> Ran:
    scenario, scanned = scenarios(), list[int]()
    computed = scenario.spark.sparkContext.accumulator(0)

    @F.udf("long", useArrow=False)
    def counted(v: int) -> int:
        computed.add(1)
        return v

    aging: dict[str, Any] = {"ttl": timedelta(hours=1), "ttl_clock": "event_time", "config": scenario.config}
    sink, seen = every_kind(scenario.config), queryable.value("seen", key="k", query="seen", **aging)
    said = ""

    def feed(batch: DataFrame, batch_id: int) -> None:
        nonlocal said
        if batch_id == 0:
            with pytest.raises(InvalidConfiguration) as refusal:
                seen(batch, batch_id)
            said = refusal.value.message
        sink(batch, batch_id)
        scanned.append(computed.value)

    drawn = [[{"of": "random", **of} for of in batch] for batch in DRAWN]
    batches = [drawn[0] + DIRECTED[0], drawn[1] + DIRECTED[1], *drawn[2:], [REFUSED]]
    with pytest.raises(StreamingQueryException) as ended:
        scenario.run(scenario.stream(f"of string, {SCHEMA}", batches).withColumn("v", counted("v")), "append", feed)
    return Ran(scenario, scanned, str(ended.value), sink.failure, said)


def test_a_map_has_the_last_row_of_each_key_and_map_key_in_order(ran: Ran) -> None:
    expected: dict[str, dict[int, int]] = {key: {} for key in KEYS}
    for of in (of for batch in DRAWN for of in batch):
        expected[of["k"]][of["m"]] = of["v"]
    assert ran.everything("m") == expected
    assert [entry.map_key for entry in ran.scenario.scan("m", "k0")] == sorted(expected["k0"])


def test_a_scan_of_a_map_has_bounds_an_order_and_a_limit(ran: Ran) -> None:
    of = sorted({of["m"] for batch in DRAWN for of in batch if of["k"] == "k0"})
    within = ran.scenario.scan("m", "k0", start=-3, stop=7, descending=True, limit=4)
    assert [entry.map_key for entry in within] == [m for m in reversed(of) if -3 <= m < 7][:4]
    assert len(ran.scenario.scan("m", "absent")) == 0


def test_an_entry_of_a_map_is_read_by_key_and_map_key(ran: Ran) -> None:
    of = [of for batch in DRAWN for of in batch if of["k"] == "k0"][-1]
    assert ran.scenario.get("m", ("k0", of["m"])).value.v == of["v"]
    assert not ran.scenario.get("m", ("k0", 99)).found


def test_rows_put_delete_and_clear_entries_of_a_map(ran: Ran) -> None:
    assert ran.everything("edited") == {"k0": {2: 20}, "k1": {5: 55}, "k2": {1: 12}, "k3": {}, "k4": {}}


def test_of_rows_with_an_order_the_last_one_counts_deletions_included(ran: Ran) -> None:
    kept, gone = ran.scenario.get_many("last", ["k0", "k1"])
    assert (kept.value.v, gone.found) == (30, False)


@pytest.mark.parametrize(("state", "max_length"), [("log", 0), ("log_of_7", 7)], ids=["unbounded", "at most 7"])
def test_a_list_has_the_rows_of_all_batches_in_order(ran: Ran, state: str, max_length: int) -> None:
    expected: dict[str, list[int]] = defaultdict(list)
    for batch in DRAWN:
        for of in sorted(batch, key=lambda of: of["m"]):
            expected[of["k"]].append(of["v"])
    for key in KEYS:
        found = ran.scenario.scan(state, key)
        assert [element.v for element in found.values] == expected[key][-max_length:]
        assert [entry.map_key for entry in found] == sorted(entry.map_key for entry in found)


def test_a_list_is_replaced_and_cleared(ran: Ran) -> None:
    found = {key: [element.v for element in ran.scenario.scan("replaced", key).values] for key in KEYS[:3]}
    assert found == {"k0": [5, 6], "k1": [], "k2": [4, 7]}


def test_an_aggregate_is_the_result_of_all_rows(ran: Ran) -> None:
    values = defaultdict(list)
    for of in (of for batch in DRAWN for of in batch):
        values[of["k"]].append(of["v"])
    for key in KEYS:
        found = ran.scenario.get("mean", key).value
        assert (found.rows, found.mean) == (len(values[key]), sum(values[key]) / len(values[key]))


@pytest.mark.parametrize("kind", ENCODED)
def test_values_may_be_encoded_by_the_job_itself(ran: Ran, kind: str) -> None:
    state, scenario = f"packed_{kind}", ran.scenario
    for key, expected in {"a": [b"\xff\x001", b"\xff\x003"], "b": []}.items():
        if kind in ("map", "list"):
            assert [element.value for element in scenario.scan(state, key).values] == expected
        else:
            answer = scenario.get(state, key)
            assert ([answer.value.value] if answer.found else []) == expected[-1:]
    described = scenario.client.describe_state(scenario.application, state)
    assert [field.type for field in described.value.fields] == ["binary"]


def test_a_broadcast_state_is_one_key_group(ran: Ran) -> None:
    scenario = ran.scenario
    assert scenario.client.describe_state(scenario.application, "rules").key_groups == 1
    assert [answer.value.v for answer in scenario.get_many("rules", ["a", "b"])] == [1, 2]
    whole = scenario.scan("rules", ())
    assert [(entry.map_key, entry.value.v) for entry in whole] == [("a", 1), ("b", 2)]
    assert [entry.map_key for entry in scenario.scan("rules", (), start="b")] == ["b"]


def test_several_states_of_one_query_have_one_epoch_and_one_scan_of_the_source(ran: Ran) -> None:
    expected: dict[int, int] = defaultdict(int)
    for of in (of for batch in DRAWN for of in batch):
        expected[of["m"]] += of["v"]
    answers = ran.scenario.get_many("totals", sorted(expected))
    assert [answer.value.total for answer in answers] == [expected[m] for m in sorted(expected)]
    assert {answer.epoch for answer in answers} == {ran.scenario.scan("m", "k0").epoch} == {len(DRAWN)}
    rows = [len(batch) for batch in DRAWN]
    for number, directed in enumerate(DIRECTED):
        rows[number] += len(directed)
    assert ran.scanned == [sum(rows[: number + 1]) for number in range(len(rows))], "each row is computed once"


def test_a_row_that_says_something_else_than_its_kind_can_ends_the_query(ran: Ran) -> None:
    assert "a row says 'append' in its op column" in ran.ended
    assert isinstance(ran.failure, ValueMismatch)


def test_a_ttl_by_event_time_needs_a_watermark(ran: Ran) -> None:
    assert "the query has no watermark: call withWatermark" in ran.unwatermarked


NOBODY = JobConfig("app", ("127.0.0.1:1",), "127.0.0.1:1")


@pytest.mark.parametrize("condition", ["v <<< 0", "w < 0", "v + 1"], ids=["no SQL", "no column", "no condition"])
def test_a_delete_when_that_is_no_condition_is_refused(spark: SparkSession, condition: str) -> None:
    sink = queryable.value("s", key="k", delete_when=condition, config=NOBODY)
    with pytest.raises(
        InvalidConfiguration, match=r"state 's': delete_when is no condition on the batch's columns \(k, m, v, op\)"
    ):
        EpochStates("app", "query").staged(sink.parts_alone(), classic(spark.createDataFrame([], SCHEMA)))


def test_a_result_that_is_no_schema_is_refused(spark: SparkSession) -> None:
    sink = queryable.aggregating("mean", key="k", aggregator=Mean(), result="mean dubble", config=NOBODY)
    with pytest.raises(InvalidConfiguration, match="result: 'mean dubble' is no schema, as 'n bigint, mean double'"):
        EpochStates("app", "query").staged(sink.parts_alone(), classic(spark.createDataFrame([], SCHEMA)))


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


def test_columns_may_have_any_name(scenarios: Scenarios) -> None:
    scenario = scenarios()
    key, map_key, order, value = "a.b", "a`b", "order by", "größe.in m"
    of: dict[str, Any] = {"key": key, "key_groups": 4, "config": scenario.config}
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
    scenario.run(scenario.stream(schema, [rows]), "append", sink)
    assert scenario.get("value", "k").value[value] == 0
    assert [entry.value[value] for entry in scenario.scan("map", "k")] == [0, 1, 4]
    assert [entry.value[value] for entry in scenario.scan("list", "k")] == [4, 1, 0]
    assert scenario.get("reducing", "k").value.asdict() == {order: 10, value: 0}
    assert scenario.get("aggregating", "k").value["n.n"] == 4
    assert [entry.value.value for entry in scenario.scan("coded", "k")] == [b"4", b"1", b"0"]
    assert scenario.get("operator", 0).value.n == 5


class Coded:
    """The bytes of one value."""

    def encode(self, row: Any) -> bytes:
        return str(row._0).encode()


def event(of: str, k: str, minute: int, v: int = 0) -> dict[str, Any]:
    return {"of": of, "k": k, "at": (START + timedelta(minutes=minute)).isoformat(), "v": v}


@pytest.fixture(scope="module")
def let_through(scenarios: Scenarios) -> Scenario:
    """What stateful operators of Spark's let through, each a state of its own."""
    scenario = scenarios()
    batches = [
        [
            *(event("sessions", "a", minute) for minute in (0, 5, 30, 33, 36)),
            *(event("firsts", "a", 0, 1), event("firsts", "b", 1, 2)),
            *(event("shown", "a", 0), event("shown", "b", 1)),
        ],
        [event("firsts", "a", 2, 3), event("firsts", "c", 3, 4), event("clicks", "a", 20), event("clicks", "a", 90)],
        [event("clicks", "b", 30), event("sessions", "b", 300)],  # by which the watermark closes the sessions of a
        [],
    ]
    source = scenario.stream("of string, k string, at timestamp, v int", batches).withWatermark("at", "2 hours")
    sessions = (
        source.where("of = 'sessions'")
        .groupBy("k", F.session_window("at", "10 minutes").alias("w"))
        .count()
        .select(
            F.lit("sessions").alias("of"), "k", F.col("w.start").alias("since"), F.col("w.end").alias("until"), "count"
        )
    )
    firsts = source.where("of = 'firsts'").dropDuplicatesWithinWatermark(["k"]).select("of", "k", "v")
    shown = source.where("of = 'shown'").select(F.col("k").alias("ad"), F.col("at").alias("shown"))
    clicks = source.where("of = 'clicks'").select("of", "k", "at")
    joined = shown.join(clicks, F.expr("k = ad AND at BETWEEN shown AND shown + INTERVAL 1 HOUR")).drop("ad")
    of: dict[str, Any] = {"key": "k", "key_groups": 4, "config": scenario.config}
    sink = queryable.together(
        queryable.map("sessions", map_key="since", value=["until", "count"], **of).of(only("sessions")),
        queryable.value("firsts", value=["v"], **of).of(only("firsts")),
        queryable.map("clicks", map_key="at", value=["shown"], **of).of(only("clicks")),
    )
    union = sessions.unionByName(firsts, allowMissingColumns=True).unionByName(joined, allowMissingColumns=True)
    scenario.run(union, "append", sink)
    return scenario


def test_sessions_are_entries_once_they_are_closed(let_through: Scenario) -> None:
    found = let_through.scan("sessions", "a")
    assert [(entry.map_key.minute, entry.value.until.minute, entry.value["count"]) for entry in found] == [
        (0, 15, 2),
        (30, 46, 3),
    ]
    assert len(let_through.scan("sessions", "b")) == 0, "still open"


def test_what_drop_duplicates_lets_through_is_a_value(let_through: Scenario) -> None:
    assert [answer.value.v for answer in let_through.get_many("firsts", ["a", "b", "c"])] == [1, 2, 4]


def test_the_pairs_of_a_stream_stream_join_are_entries_of_a_map(let_through: Scenario) -> None:
    found = {ad: [entry.map_key.minute for entry in let_through.scan("clicks", ad)] for ad in ("a", "b")}
    assert found == {"a": [20], "b": [30]}


def test_several_states_are_made_of_one_stateful_batch(scenarios: Scenarios) -> None:
    """The maximum of strings makes Spark sort, and such a batch can't be persisted as it is."""
    scenario = scenarios()
    rows = [[{"k": f"k{n % 5}", "m": n, "v": n} for n in range(start, start + 30)] for start in (0, 30)]
    highest = (
        scenario.stream(SCHEMA, rows)
        .groupBy("k")
        .agg(F.max(F.col("v").cast("string")).alias("word"), F.count("*").alias("events"))
    )
    of: dict[str, Any] = {"key_groups": 4, "config": scenario.config}
    sink = queryable.together(
        queryable.value("words", key="k", value=["word"], **of),
        queryable.value("events", key="k", value=["events"], **of),
        queryable.map("by_count", key="events", map_key="k", **of),
    )
    scenario.run(highest, "update", sink)
    words = {key: max(str(row["v"]) for batch in rows for row in batch if row["k"] == key) for key in KEYS}
    assert {key: scenario.get("words", key).value.word for key in KEYS} == words
    assert {scenario.get("events", key).value.events for key in KEYS} == {12}
    assert [entry.map_key for entry in scenario.scan("by_count", 12)] == KEYS
