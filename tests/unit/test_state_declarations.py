"""What each kind of state refuses where it is declared, and by which words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from keyhole.config import JobConfig
from keyhole.errors import InvalidConfiguration
from keyhole.spark import queryable
from keyhole.types import StateKind

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


GOOD: dict[Callable[..., Any], dict[str, Any]] = {
    queryable.value: {},
    queryable.map: {"map_key": "m"},
    queryable.list: {"max_length": 3},
    queryable.reducing: {"reducers": {"v": "sum"}},
    queryable.aggregating: {"aggregator": Count(), "result": "n bigint"},
    queryable.broadcast: {},
}


@pytest.mark.parametrize("make", GOOD)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ttl": timedelta(0)}, "ttl is .* it must be a timedelta of 1 ms or more"),
        ({"ttl": 60}, "ttl is 60; it must be a timedelta"),
        ({"ttl": timedelta(1), "ttl_clock": "wall"}, "ttl_clock is 'wall'; it must be one of processing_time, event_t"),
        ({"op": "o", "delete_when": "v < 0"}, "op and delete_when both say what a row does"),
        ({"op": "k"}, "k says what a row does; it can't be part of the key"),
        ({"key": ()}, "key is empty"),
        ({"state": "control"}, "the name is reserved"),
        ({"on_new_checkpoint": "ignore"}, "on_new_checkpoint is 'ignore'"),
    ],
)
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
        (queryable.map, {"map_key": ["m", "m"]}, "map_key names a column twice"),
        (queryable.map, {"map_key": "k"}, "k is in key and in map_key"),
        (queryable.map, {"value": ["m"]}, "m is part of the key, which every reader knows"),
        (queryable.list, {"max_length": None}, "max_length=, or that it may grow for ever with unbounded=True"),
        (queryable.list, {"unbounded": True}, "and not both"),
        (queryable.list, {"max_length": 0}, "max_length is 0"),
        (queryable.list, {"mode": "prepend"}, "mode is 'prepend'; it must be append or replace"),
        (queryable.reducing, {"reducers": {"v": "mean"}}, "the reducers are sum, min"),
        (queryable.reducing, {"codec": object()}, "a reducing state is made of its columns"),
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
    with pytest.raises(TypeError, match=r"unexpected arguments: keygroups \(is it key_groups\?\)"):
        queryable.value("s", key="k", keygroups=3, config=CONFIG)  # type: ignore[call-arg]


def test_an_operator_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match=r"operator \(Count\) has no process; it needs process, result"):
        queryable.operator("s", operator=Count(), result="n bigint", config=CONFIG)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfiguration, match="operator is the class Elements"):
        queryable.operator("s", operator=Elements, result="n bigint", config=CONFIG)  # type: ignore[arg-type]


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
        ({"subtasks": 0}, "it must be from 1 to 10,000"),
        ({"subtasks": 100_000}, "it must be from 1 to 10,000"),
        ({"mode": "broadcast"}, "it must be list or union"),
        ({"op": "o"}, r"op can't be given, as .* let the operator's process\(\) leave out"),
        ({"delete_when": "v < 0"}, r"delete_when can't be given, as .* let the operator's process\(\) leave out"),
    ],
)
def test_an_operator_state_refuses_what_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        queryable.operator("s", operator=Elements(), result="n bigint", config=CONFIG, **arguments)
