"""Rows that say what they do, by `op` or `delete_when`: one spelling for all kinds that have keys."""

from __future__ import annotations

from typing import Any

import pytest

from keyhole.config import JobConfig
from keyhole.spark import queryable
from keyhole.spark.sink import Sink
from tests.support.scenario import Scenario, Scenarios, only

SCHEMA = "k string, m int, v bigint, op string"
KINDS = ("value", "map", "list", "reducing", "aggregating", "broadcast")
KEYS = ("k0", "k1", "k2")


class Total:
    """The sum of the values that are not null."""

    commutative = True

    def create(self) -> int:
        return 0

    def add(self, accumulator: int, row: Any) -> int:
        return accumulator + (row.v or 0)

    def merge(self, one: int, other: int) -> int:
        return one + other

    def result(self, accumulator: int) -> tuple[int]:
        return (accumulator,)


def row(of: str, k: str, v: int | None = None, op: str | None = None, m: int = 1) -> dict[str, Any]:
    return {"of": of, "k": k, "m": m, "v": v, "op": op}


def one_of_each_kind(rows: str, config: JobConfig, **options: Any) -> list[Sink]:
    """Of the rows that say so in their column `of`; each state has that name and its kind's."""
    of: dict[str, Any] = {"key": "k", "config": config, **options}
    values = {"value": ["v"], "key_groups": 4, **of}
    sinks = [
        queryable.value(f"{rows}_value", **values),
        queryable.map(f"{rows}_map", map_key="m", **values),
        queryable.list(f"{rows}_list", max_length=10, **values),
        queryable.reducing(f"{rows}_reducing", reducers={"v": "sum"}, key_groups=4, **of),
        queryable.aggregating(f"{rows}_aggregating", aggregator=Total(), result="v bigint", **values),
        queryable.broadcast(f"{rows}_broadcast", value=["v"], **of),
    ]
    return [sink.of(only(rows)) for sink in sinks]


def lists_that_replace(config: JobConfig) -> list[Sink]:
    of: dict[str, Any] = {"key": "k", "value": ["v"], "order_by": "v", "max_length": 10, "mode": "replace"}
    of |= {"key_groups": 4, "config": config}
    sinks = [
        queryable.list("by_mode", **of),
        queryable.list("by_op", op="op", **of),
        queryable.list("by_condition", delete_when="op = 'delete'", **of),
    ]
    return [sink.of(only("replaced")) for sink in sinks]


def ordered(config: JobConfig) -> list[Sink]:
    """By their values."""
    of: dict[str, Any] = {"key": "k", "value": ["v"], "order_by": "v", "op": "op", "key_groups": 4, "config": config}
    sinks = [
        queryable.value("by_order_value", **of),
        queryable.map("by_order_map", map_key="m", **of),
        queryable.value("always_value", deletes="always", **of),
        queryable.map("always_map", map_key="m", deletes="always", **of),
    ]
    return [sink.of(only("ordered")) for sink in sinks]


BATCHES = [
    [
        *(row("condition", "k0", 1), row("condition", "k1", 2), row("condition", "k2", 3)),
        *(row("op", "k0", 1), row("op", "k1", 2, "put"), row("op", "k2", 3)),
        *(row("replaced", "k0", 1), row("replaced", "k0", 2), row("replaced", "k1", 3), row("replaced", "k2", 4)),
        *(row("ordered", "k0", 5), row("ordered", "k0", 7, "delete"), row("ordered", "k0", 6)),
        *(row("ordered", "k1", 4, "delete"), row("ordered", "k1", 5), row("ordered", "k2", 5)),
    ],
    [
        *(row("condition", "k0", -1), row("condition", "k1", None, m=2), row("condition", "k2", -1)),
        *(row("op", "k0", op="delete"), row("op", "k1", 4, "put", m=2), row("op", "k2", op="clear", m=7)),
        *(row("replaced", "k0", 5), row("replaced", "k0", 6)),
        *(row("replaced", "k1", 7, "append"), row("replaced", "k2", 8, "delete")),
        *(row("ordered", "k0", 6), row("ordered", "k1", 1, "delete"), row("ordered", "k2", op="delete")),
    ],
    [row("condition", "k2", 5), row("op", "k2", 5), row("ordered", "k1", 2)],
]


@pytest.fixture(scope="module")
def ran(scenarios: Scenarios) -> Scenario:
    scenario = scenarios()
    sink = queryable.together(
        *one_of_each_kind("condition", scenario.config, delete_when="v < 0"),
        *one_of_each_kind("op", scenario.config, op="op"),
        *lists_that_replace(scenario.config),
        *ordered(scenario.config),
    )
    scenario.run(scenario.stream(f"of string, {SCHEMA}", BATCHES), "append", sink)
    return scenario


def held(scenario: Scenario, state: str, key: str) -> object:
    """The value; of a map the entries, of a list the elements."""
    if state.endswith("_map"):
        return {entry.map_key: entry.value.v for entry in scenario.scan(state, key)}
    if state.endswith("_list"):
        return elements(scenario, state, key)
    answer = scenario.get(state, key)
    return answer.value.v if answer.found else "absent"


def elements(scenario: Scenario, state: str, key: str) -> list[Any]:
    return [element.v for element in scenario.scan(state, key).values]


def test_a_row_deletes_when_its_condition_holds(ran: Scenario) -> None:
    found = {kind: [held(ran, f"condition_{kind}", key) for key in KEYS] for kind in KINDS}
    # What is neither true nor false deletes nothing; and of what came before a deletion nothing is left.
    assert found == {
        "value": ["absent", None, 5],
        "map": [{}, {1: 2, 2: None}, {1: 5}],
        "list": [[], [2, None], [5]],
        "reducing": ["absent", 2, 5],
        "aggregating": ["absent", 2, 5],
        "broadcast": ["absent", None, 5],
    }


def test_a_row_does_what_its_op_column_says(ran: Scenario) -> None:
    found = {kind: [held(ran, f"op_{kind}", key) for key in KEYS] for kind in KINDS}
    assert found == {
        "value": ["absent", 4, 5],
        "map": [{}, {1: 2, 2: 4}, {1: 5}],
        "list": [[], [2, 4], [5]],
        "reducing": ["absent", 6, 5],
        "aggregating": ["absent", 6, 5],
        "broadcast": ["absent", 4, 5],
    }


def test_a_list_that_replaces_does_so_with_rows_that_say_nothing_else(ran: Scenario) -> None:
    found = {state: [elements(ran, state, key) for key in KEYS] for state in ("by_mode", "by_op", "by_condition")}
    assert found == {
        "by_mode": [[5, 6], [7], [8]],
        "by_op": [[5, 6], [3, 7], []],
        "by_condition": [[5, 6], [7], []],
    }


def test_with_an_order_an_older_row_neither_deletes_nor_comes_back(ran: Scenario) -> None:
    found = {kind: [held(ran, f"by_order_{kind}", key) for key in KEYS] for kind in ("value", "map")}
    assert found == {"value": ["absent", 5, 5], "map": [{}, {1: 5}, {1: 5}]}


def test_unless_the_state_says_that_deletions_always_count(ran: Scenario) -> None:
    """Of one batch the order counts nevertheless."""
    found = {kind: [held(ran, f"always_{kind}", key) for key in KEYS] for kind in ("value", "map")}
    assert found == {"value": [6, 2, "absent"], "map": [{1: 6}, {1: 2}, {}]}
