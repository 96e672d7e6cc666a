"""Rows that say what they do, by `op` or `delete_when`: one spelling for all kinds that have keys."""

from __future__ import annotations

from typing import Any

from keyhole import Client
from keyhole.spark import queryable
from keyhole.spark.sink import Sink
from tests.support.streams import RunQuery, Service, Stream

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


def row(k: str, v: int | None = None, op: str | None = None, m: int = 1) -> dict[str, Any]:
    return {"k": k, "m": m, "v": v, "op": op}


def one_of_each_kind(service: Service, application: str, **options: Any) -> Sink:
    """Each state has its kind's name."""
    of: dict[str, Any] = {"key": "k", "config": service.config(application), **options}
    return queryable.together(
        queryable.value("value", value=["v"], **of),
        queryable.map("map", map_key="m", value=["v"], **of),
        queryable.list("list", value=["v"], max_length=10, **of),
        queryable.reducing("reducing", reducers={"v": "sum"}, **of),
        queryable.aggregating("aggregating", aggregator=Total(), result="v bigint", value=["v"], **of),
        queryable.broadcast("broadcast", value=["v"], **of),
    )


def held(client: Client, application: str, state: str, key: str) -> object:
    """The value; of a map the entries, of a list the elements."""
    if state == "map":
        return {entry.map_key: entry.value.v for entry in client.scan(application, state, key)}
    if state == "list":
        return elements(client, application, state, key)
    answer = client.get(application, state, key)
    return answer.value.v if answer.found else "absent"


def elements(client: Client, application: str, state: str, key: str) -> list[Any]:
    return [element.v for element in client.scan(application, state, key).values]


def test_a_row_deletes_when_its_condition_holds(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    batches = [
        [row("k0", 1), row("k1", 2), row("k2", 3)],
        [row("k0", -1), row("k1", None, m=2), row("k2", -1)],
        [row("k2", 5)],
    ]
    run_query(stream(SCHEMA, batches), "append", one_of_each_kind(service, application, delete_when="v < 0"))
    with Client(service.proxy) as client:
        found = {kind: [held(client, application, kind, key) for key in KEYS] for kind in KINDS}
    # What is neither true nor false deletes nothing; and of what came before a deletion nothing is left.
    assert found == {
        "value": ["absent", None, 5],
        "map": [{}, {1: 2, 2: None}, {1: 5}],
        "list": [[], [2, None], [5]],
        "reducing": ["absent", 2, 5],
        "aggregating": ["absent", 2, 5],
        "broadcast": ["absent", None, 5],
    }


def test_a_row_does_what_its_op_column_says(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    batches = [
        [row("k0", 1), row("k1", 2, "put"), row("k2", 3)],
        [row("k0", op="delete"), row("k1", 4, "put", m=2), row("k2", op="clear", m=7)],
        [row("k2", 5)],
    ]
    run_query(stream(SCHEMA, batches), "append", one_of_each_kind(service, application, op="op"))
    with Client(service.proxy) as client:
        found = {kind: [held(client, application, kind, key) for key in KEYS] for kind in KINDS}
    assert found == {
        "value": ["absent", 4, 5],
        "map": [{}, {1: 2, 2: 4}, {1: 5}],
        "list": [[], [2, 4], [5]],
        "reducing": ["absent", 6, 5],
        "aggregating": ["absent", 6, 5],
        "broadcast": ["absent", 4, 5],
    }


def test_a_list_that_replaces_does_so_with_rows_that_say_nothing_else(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    batches = [
        [row("k0", 1), row("k0", 2), row("k1", 3), row("k2", 4)],
        [row("k0", 5), row("k0", 6), row("k1", 7, "append"), row("k2", 8, "delete")],
    ]
    of: dict[str, Any] = {"key": "k", "value": ["v"], "order_by": "v", "max_length": 10, "mode": "replace"}
    config = service.config(application)
    sink = queryable.together(
        queryable.list("by_mode", config=config, **of),
        queryable.list("by_op", op="op", **of, config=config),
        queryable.list("by_condition", delete_when="op = 'delete'", **of, config=config),
    )
    run_query(stream(SCHEMA, batches), "append", sink)
    with Client(service.proxy) as client:
        found = {
            state: [elements(client, application, state, key) for key in KEYS]
            for state in ("by_mode", "by_op", "by_condition")
        }
    assert found == {
        "by_mode": [[5, 6], [7], [8]],
        "by_op": [[5, 6], [3, 7], []],
        "by_condition": [[5, 6], [7], []],
    }
