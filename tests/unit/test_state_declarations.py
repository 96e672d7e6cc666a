"""What each kind of state refuses where it is declared, and by which words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StringType, StructField

from keyhole.config import JobConfig
from keyhole.errors import InvalidConfiguration
from keyhole.model.state import StateKind
from keyhole.spark import queryable
from keyhole.spark.write_path.epoch_states import EpochStates
from tests.support.of_all import of_all

CONFIG = JobConfig("app", ("127.0.0.1:7410",), "127.0.0.1:9092")


class Count:
    def create(self) -> int:
        return 0

    def add(self, accumulator: int, row: Any) -> int:
        return accumulator + 1

    def merge(self, one: int, other: int) -> int:
        return one + other

    def result(self, accumulator: int) -> tuple[int]:
        return (accumulator,)


class Elements:
    def process(self, subtask: queryable.Subtask, elements: list[Any], rows: Iterator[Any]) -> list[Any]:
        return elements

    def result(self, elements: Sequence[Any]) -> tuple[int]:
        return (len(elements),)


class Nothing(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        return iter(())


GOOD: dict[Callable[..., Any], dict[str, Any]] = {
    queryable.value: {},
    queryable.map: {"map_key": "m"},
    queryable.list: {"max_length": 3},
    queryable.reducing: {"reducers": {"v": "sum"}},
    queryable.aggregating: {"aggregator": Count(), "result": "n bigint"},
    queryable.broadcast: {},
}


REFUSED_BY_ALL: list[tuple[dict[str, Any], str]] = [
    ({"ttl": timedelta(0)}, "ttl is .* it must be a timedelta of 1 ms or more"),
    ({"ttl": 60}, "ttl is 60; it must be a timedelta"),
    ({"ttl": timedelta(1), "ttl_clock": "wall"}, "ttl_clock is 'wall'; it must be one of processing_time, event_t"),
    ({"op": "o", "delete_when": "v < 0"}, "op and delete_when both say what a row does"),
    ({"op": "k"}, "k says what a row does; it can't be part of the key"),
    ({"ttl_clock": "event_time"}, "ttl_clock is 'event_time' and ttl is not given; say with ttl="),
    ({"op": ""}, "op is ''; it must be the name of one column"),
    ({"op": 3}, "op is 3; it must be the name of one column"),
    ({"delete_when": True}, "delete_when is True; it must be a condition, as SQL text or a Column"),
    ({"delete_when": ""}, "delete_when is ''; it must be a condition"),
    ({"defaults": None}, "defaults says by column"),
    ({"defaults": {3: 1, "v": 1}}, "defaults names 3, which is no column's name"),
    ({"strict": "yes"}, "strict is 'yes'; it must be True or False"),
    ({"on_commit": 3}, "on_commit is 3; it must be a function"),
    ({"config": "local"}, "config is a str; it must be a keyhole.config.JobConfig"),
    ({"query": 3}, "query is 3, but must be 1 to 100 letters"),
    ({"state": None}, "the state's name is None, but must be"),
    ({"key": ()}, "key is empty"),
    ({"key": None}, "key is given as None; give the column's name as text, or a list of names"),
    ({"key": ["k", 3]}, "key is given as 3; give the column's name"),
    ({"key": {"k"}}, "key is given as a set; give the column's name"),
    ({"key": StructField("k", StringType())}, "key is given as a StructField; give the column's name"),
    ({"state": "control"}, "the name is reserved"),
    ({"on_new_checkpoint": "ignore"}, "on_new_checkpoint is 'ignore'"),
]


@of_all((make, *case) for make in GOOD for case in REFUSED_BY_ALL)
def test_what_all_kinds_refuse(make: Callable[..., Any], arguments: dict[str, Any], message: str) -> None:
    given = {"state": "s", "key": "k", "config": CONFIG} | GOOD[make] | arguments
    with pytest.raises(InvalidConfiguration, match=message):
        make(given.pop("state"), **given)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (queryable.map, {"map_key": ()}, "map_key is empty; name the column .* or use queryable.value"),
        (queryable.map, {"map_key": ""}, "map_key is empty; name the column .* or use queryable.value"),
        (queryable.map, {"map_key": ["m", ""]}, "map_key is empty"),
        (queryable.reducing, {"map_key": ""}, "map_key is empty; name the column .* or leave it out"),
        (queryable.map, {"map_key": None}, "map_key is given as None; give the column's name"),
        (queryable.value, {"value": 3}, "value is given as 3; give the column's name"),
        (queryable.value, {"order_by": ["at", "v"]}, "order_by is a list; it must be the name of one column"),
        (
            queryable.value,
            {"order_by": "v", "deletes": "never"},
            "deletes is 'never'; it must be one of by_order, al",
        ),
        (
            queryable.map,
            {"order_by": "v", "keep_deleted": 3},
            "keep_deleted is 3; it must be a timedelta of 1 ms",
        ),
        (queryable.map, {"order_by": "v", "keep_deleted": timedelta(0)}, "keep_deleted is datetime.timedelta"),
        (queryable.value, {"keep_deleted": timedelta(1)}, "keep_deleted is given and order_by is not"),
        (
            queryable.broadcast,
            {"order_by": "v", "deletes": "always", "keep_deleted": timedelta(1)},
            "deletes is 'always', by which nothing is remembered",
        ),
        (queryable.list, {"max_length": 2.5}, "max_length is 2.5; it must be a whole number, 1 or more"),
        (queryable.list, {"max_length": "3"}, "max_length is '3'; it must be a whole number"),
        (queryable.list, {"max_length": -1}, "max_length is -1; it must be a whole number"),
        (queryable.list, {"max_length": 1 << 70}, "max_length is 1180591620717411303424"),
        (queryable.aggregating, {"aggregator": None}, r"aggregator \(NoneType\) has no create"),
        (queryable.aggregating, {"result": ""}, "result is ''; it must be the schema of what readers get"),
        (queryable.map, {"map_key": ["m", "m"]}, "map_key names a column twice"),
        (queryable.map, {"map_key": "k"}, "k is in key and in map_key"),
        (queryable.map, {"value": ["m"]}, "m is part of the key, which every reader knows"),
        (
            queryable.list,
            {"value": ["k", "v"]},
            "k is part of the key, which every reader knows; leave it out of value",
        ),
        (queryable.list, {"max_length": None}, "max_length=, or that it may grow for ever with unbounded=True"),
        (queryable.list, {"unbounded": True}, "and not both"),
        (queryable.list, {"max_length": 0}, "max_length is 0"),
        (queryable.list, {"mode": "prepend"}, "mode is 'prepend'; it must be append or replace"),
        (queryable.reducing, {"reducers": {"v": "mean"}}, "the reducers are sum, min"),
        (
            queryable.reducing,
            {"reducers": {"v": "sum", "k": "count"}},
            r"reducers names k, which is part of the key.* rows of each key, name a field for it: .*count\(\)",
        ),
        (queryable.reducing, {"reducers": {"k": "max"}}, "reducers names k, which is part of the key"),
        (queryable.value, {"order_by": "k"}, "k is part of the key, .* leave it out of value and order_by"),
        (
            queryable.reducing,
            {"codec": object()},
            "what reducing makes of the columns is the value; codec can't take its place",
        ),
        (queryable.value, {"codec": object(), "order_by": "v"}, "order_by compares stored values, which codec hides"),
        (queryable.value, {"codec": object()}, r"codec \(object\) has no encode; it needs encode"),
        (
            queryable.aggregating,
            {"aggregator": Count},
            r"aggregator is the class Count; give an object of it, Count\(\)",
        ),
        (queryable.aggregating, {"aggregator": Elements()}, r"\(Elements\) has no create, add, merge; it needs create"),
        (queryable.broadcast, {"key_groups": 8}, "key_groups can't be chosen, leave it out: a broadcast state is on"),
        (queryable.broadcast, {"standbys": 1}, "standbys can't be chosen, leave it out"),
    ],
)
def test_what_one_kind_refuses(make: Callable[..., Any], arguments: dict[str, Any], message: str) -> None:
    given = {"key": "k", "config": CONFIG} | GOOD[make] | arguments
    with pytest.raises(InvalidConfiguration, match=message):
        make("s", **given)


def test_an_argument_that_there_is_not_is_refused_by_its_name() -> None:
    with pytest.raises(TypeError, match=r"queryable.value\(\) got unexpected arguments: keys"):
        queryable.value("s", key="k", keys=3, config=CONFIG)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"queryable.list\(\) .*: max_lenght \(is it max_length\?\)"):
        queryable.list("s", key="k", max_lenght=3, config=CONFIG)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"queryable.operator\(\) got unexpected arguments: key$"):
        queryable.operator("s", key="k", operator=Elements(), result="n bigint", config=CONFIG)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"queryable.together\(\) .*: on_comit \(is it on_commit\?\)"):
        queryable.together(queryable.value("s", key="k", config=CONFIG), on_comit=print)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"unexpected arguments: keygroups \(is it key_groups\?\)"):
        queryable.value("s", key="k", keygroups=3, config=CONFIG)  # type: ignore[call-arg]


@pytest.mark.parametrize("key", [None, 3, ["k", None]])
def test_a_lookup_by_what_is_no_column_is_refused_before_anybody_is_asked(key: Any) -> None:
    data: Any = None  # it is not looked at
    with pytest.raises(InvalidConfiguration, match=r"key is given as (None|3); give the column's name"):
        queryable.lookup(data, "app/state", key=key, proxy="127.0.0.1:7400")


def test_an_operator_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match=r"operator \(Count\) has no process; it needs process, result"):
        queryable.operator("s", operator=Count(), result="n bigint", config=CONFIG)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfiguration, match="operator is the class Elements"):
        queryable.operator("s", operator=Elements, result="n bigint", config=CONFIG)  # type: ignore[arg-type]


def test_a_list_may_be_ordered_by_a_column_of_its_key() -> None:
    queryable.list("s", key=["k", "at"], order_by="at", max_length=3, config=CONFIG)


def test_one_value_column_need_not_be_in_a_list() -> None:
    (part,) = queryable.value("s", key="k", value="amount", config=CONFIG)._parts
    assert part.declaration.value == ("amount",)


def test_what_is_no_sink_or_no_function_or_no_processor_is_refused() -> None:
    one = queryable.value("s", key="k", config=CONFIG)
    with pytest.raises(InvalidConfiguration, match=r"and not a list; of a list, give each: together\(\*sinks\)"):
        queryable.together([one])  # type: ignore[arg-type]
    with pytest.raises(InvalidConfiguration, match=r"of takes a function .* not a str"):
        one.of("SELECT 1")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfiguration, match="exposed takes a QueryableProcessor, not a Count"):
        queryable.exposed(Count(), config=CONFIG)  # type: ignore[arg-type]


def test_what_a_processor_says_of_its_states_is_not_said_again() -> None:
    exposing = queryable.QueryableProcessor(Nothing(), key="k", expose={"last": queryable.ExposedValue("v bigint")})
    with pytest.raises(InvalidConfiguration, match="delete_when, op can't be given: the processor says what is done"):
        queryable.exposed(exposing, op="o", delete_when="v < 0", config=CONFIG)


def test_a_state_that_is_fed_twice_by_one_query_is_refused() -> None:
    one, other = (queryable.value("s", key="k", config=CONFIG) for _ in range(2))
    with pytest.raises(InvalidConfiguration, match=r"a state is given twice \(s, s\)"):
        queryable.together(one, other)


def test_what_concerns_the_query_is_not_given_to_one_of_its_states() -> None:
    strict = queryable.value("s", key="k", strict=True, config=CONFIG)
    with pytest.raises(InvalidConfiguration, match="was made with strict, which concerns the whole query"):
        queryable.together(strict, queryable.value("t", key="k", config=CONFIG))
    with pytest.raises(InvalidConfiguration, match="no state is given"):
        queryable.together(config=CONFIG)


def test_a_state_and_another_one_are_parts_of_one_sink_in_their_order() -> None:
    sink = queryable.together(
        queryable.value("s", key="k", config=CONFIG),
        queryable.map("t", key="k", map_key="m", config=CONFIG).of(lambda data: data),
        query="both",
    )
    first, second = (part.declaration for part in sink._parts)
    assert (first.state, first.kind, second.state, second.kind) == ("s", StateKind.VALUE, "t", StateKind.MAP)
    assert sink.config is CONFIG


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"subtasks": 0}, "subtasks is 0; it must be a whole number from 1 to 10,000"),
        ({"subtasks": 100_000}, "it must be a whole number from 1 to 10,000"),
        ({"subtasks": "4"}, "subtasks is '4'; it must be a whole number"),
        ({"subtasks": 2.5}, "subtasks is 2.5; it must be a whole number"),
        ({"operator": None}, "operator .NoneType. has no process, result"),
        ({"result": None}, "result is None; it must be the schema of what readers get"),
        ({"mode": "broadcast"}, "it must be list or union"),
        ({"op": "o"}, r"op can't be given, as .* let the operator's process\(\) leave out"),
        ({"delete_when": "v < 0"}, r"delete_when can't be given, as .* let the operator's process\(\) leave out"),
    ],
)
def test_an_operator_state_refuses_what_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        queryable.operator("s", **({"operator": Elements(), "result": "n bigint", "config": CONFIG} | arguments))


def test_a_function_that_returns_no_rows_is_refused_by_the_states_name() -> None:
    forgets_to_return: Any = lambda batch: None  # noqa: E731
    sink = queryable.value("s", key="k", config=CONFIG).of(forgets_to_return)
    rows: Any = None  # it is not looked at
    with pytest.raises(
        InvalidConfiguration, match=r"state 's': the function .* of\(\) returned a NoneType; it must return"
    ):
        EpochStates("app", "query").staged(sink.parts_alone(), rows)


def classes(version: object, **methods: Any) -> dict[Callable[..., Any], dict[str, Any]]:
    """By the function that takes it, a class of that version."""
    of = {"version": version, **methods}
    codec = type("Codec", (), {"encode": lambda self, row: b"", **of})()
    return {
        queryable.aggregating: {"key": "k", "aggregator": type("Later", (Count,), of)(), "result": "n bigint"},
        queryable.operator: {"operator": type("Later", (Elements,), of)(), "result": "n bigint"},
        queryable.value: {"key": "k", "codec": codec},
    }


@pytest.mark.parametrize("version", [0, -1, 256, 1.0, True, "2", None])
@pytest.mark.parametrize("make", [queryable.aggregating, queryable.operator, queryable.value])
def test_a_version_is_a_whole_number_of_few_digits(make: Callable[..., Any], version: object) -> None:
    with pytest.raises(InvalidConfiguration, match=r"has the version .*; it must be a whole number from 1 to 255"):
        make("s", **classes(version, upgrade=print)[make], config=CONFIG)


@pytest.mark.parametrize("make", [queryable.aggregating, queryable.operator])
def test_a_class_of_a_later_version_has_to_say_what_becomes_of_what_an_earlier_one_has_stored(
    make: Callable[..., Any],
) -> None:
    """Before there is a query: the one that runs goes on."""
    for of in (classes(2), classes(2, upgrade=None)):
        with pytest.raises(
            InvalidConfiguration, match=r"\(Later\) has version 2 and no upgrade\(stored, version\); give"
        ):
            make("s", **of[make], config=CONFIG)
    make("s", **classes(1)[make], config=CONFIG)
    make("s", **classes(255, upgrade=print)[make], config=CONFIG)


def test_a_codec_of_any_version_may_be_declared_where_no_key_column_has_the_name() -> None:
    """What it has made is never given to it again."""
    queryable.value("s", **classes(2)[queryable.value], config=CONFIG)
    queryable.value("s", key="version", codec=type("Codec", (), {"encode": print})(), config=CONFIG)
    with pytest.raises(InvalidConfiguration, match="the key has a column 'version', as the field is called that codec"):
        queryable.value("s", **classes(2)[queryable.value] | {"key": "version"}, config=CONFIG)
