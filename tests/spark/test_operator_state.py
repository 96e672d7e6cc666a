"""Operator state from real streaming queries: what subtasks hold, and what becomes of it when their number changes."""

from __future__ import annotations

from collections import Counter as Recount
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from keyhole import Client
from keyhole.spark import queryable
from tests.spark.test_state_kinds import SCHEMA, random_rows
from tests.support.streams import RunQuery, Service, Stream


class Enough(Exception):
    """The run has had its batch."""


class Counter:
    """Counts rows per key, in each subtask."""

    def process(self, subtask: queryable.Subtask, elements: list[Any], rows: Iterator[Any]) -> list[Any]:
        counts: dict[str, int] = defaultdict(int)
        for key, count in elements:
            counts[key] += count
        for row in rows:
            counts[row.k] += 1
        return [*sorted(counts.items())]

    def result(self, elements: Sequence[Any]) -> Mapping[str, Any]:
        return {"rows": sum(count for _, count in elements), "counts": elements}


class Witness:
    """Of a union state: each subtask holds its own number, and all that it was given when it was restored."""

    def process(self, subtask: queryable.Subtask, elements: list[Any], rows: Iterator[Any]) -> list[Any]:
        for _ in rows:
            pass
        return elements if subtask.restored else [subtask.index]

    def result(self, elements: Sequence[Any]) -> Mapping[str, Any]:
        return {"elements": sorted(elements)}


COUNTED = "rows bigint, counts map<string,bigint>"
Counts = Mapping[str, int]


def counted_since(before: Sequence[Counts], counts: Sequence[Counts]) -> dict[str, int]:
    """By key, what the subtasks have counted beyond what they were given: the elements of those before, dealt out."""
    elements = [element for of in before for element in of.items()]
    new: dict[str, int] = defaultdict(int)
    for subtask, held in enumerate(counts):
        given: dict[str, int] = defaultdict(int)
        for key, count in elements[subtask :: len(counts)]:
            given[key] += count
        assert given.keys() <= held.keys()
        for key, count in held.items():
            assert count >= given[key], f"subtask {subtask} has lost some of what it was given"
            new[key] += count - given[key]
    return new


def test_operator_state_follows_its_subtasks_when_their_number_changes(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    config = service.config(application)
    batches = random_rows(3)
    data = stream(SCHEMA, batches)
    before: list[Counts] = []
    seen: list[list[list[int]]] = []
    for number, subtasks in enumerate((2, 5, 1)):
        options: dict[str, Any] = {"subtasks": subtasks, "config": config}
        both = queryable.together(
            queryable.operator("counter", operator=Counter(), result=COUNTED, **options),
            queryable.operator("witness", operator=Witness(), result="elements array<int>", mode="union", **options),
        )

        def one_batch(
            rows: DataFrame, batch_id: int, both: Callable[[DataFrame, int], None] = both, number: int = number
        ) -> None:
            if batch_id > number:
                raise Enough
            both(rows, batch_id)

        with suppress(StreamingQueryException):
            run_query(data, "append", one_batch, name="counting")
        with Client(service.proxy) as client:
            found = [client.get(application, "counter", index) for index in range(5)]
            given = [client.get(application, "witness", index) for index in range(subtasks)]
        held = [of.value for of in found if of.found]
        assert [sum(of.counts.values()) for of in held] == [of.rows for of in held]
        assert [len(of.counts) > 0 for of in held] == [True] * subtasks + [False] * (len(held) - subtasks)
        counts = [of.counts for of in held[:subtasks]]
        assert counted_since(before, counts) == Recount(row["k"] for row in batches[number])
        totals = sum((Recount(of) for of in counts), Recount())
        assert totals == Recount(row["k"] for batch in batches[: number + 1] for row in batch)
        before = counts
        seen.append([list(of.value.elements) for of in given])
    assert seen == [[[0], [1]], [[0, 1]] * 5, [[0, 0, 0, 0, 0, 1, 1, 1, 1, 1]]]


def test_a_batch_that_is_run_again_has_the_subtasks_that_it_had_at_first(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    """Servers may have committed their parts of it: with other subtasks the rest would not fit to them."""
    config = service.config(application)
    batches = random_rows(4)
    data = stream(SCHEMA, batches)
    seen: list[tuple[int, list[Counts]]] = []
    for first, subtasks in ((0, 2), (0, 5), (1, 1), (2, 3)):

        def parted(rows: DataFrame, subtasks: int = subtasks) -> DataFrame:
            return rows.repartition(subtasks)

        options: dict[str, Any] = {"operator": Counter(), "result": COUNTED, "config": config}
        both = queryable.together(
            queryable.operator("counter", subtasks=subtasks, **options),
            queryable.operator("by_partition", **options).of(parted),
            strict=True,
        )

        def two_batches(
            rows: DataFrame,
            batch_id: int,
            both: Callable[[DataFrame, int], None] = both,
            last: int = first + 1,
        ) -> None:
            both(rows, batch_id)
            counts = []
            with Client(service.proxy) as client:
                for state in ("counter", "by_partition"):
                    held = [of.value.counts for of in client.get_many(application, state, range(5)) if of.found]
                    counts.append(sum((Recount(of) for of in held), Recount()))
            seen.append((batch_id, counts))
            if batch_id == last or not seen[1:]:
                # Its epoch is complete, and Spark hears nothing of that.
                raise Enough

        with suppress(StreamingQueryException):
            run_query(data, "append", two_batches, name="counting")
    assert [batch for batch, _ in seen] == [0, 0, 1, 1, 2, 2, 3]
    for batch, counts in seen:
        assert counts == [Recount(row["k"] for of in batches[: batch + 1] for row in of)] * 2


def test_of_states_that_one_job_stages_some_may_have_no_rows_and_others_count_their_partitions(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    """Spark leaves a plan that has no rows out of the job; the partitions after it have other numbers then."""
    config = service.config(application)

    def nothing(data: DataFrame) -> DataFrame:
        return data.where("false")

    options: dict[str, Any] = {"key": "k", "value": ["v"], "order_by": "v", "config": config}
    sink = queryable.together(
        queryable.value("none", key_groups=4, **options).of(nothing),
        queryable.value("before", key_groups=8, **options),
        queryable.operator("counter", operator=Counter(), result=COUNTED, subtasks=1, config=config),
        queryable.value("none_again", key_groups=16, **options).of(nothing),
        queryable.value("after", key_groups=2, **options),
    )
    batches = [[{"k": f"k{n}", "v": n + 10 * batch} for n in range(5)] for batch in range(2)]
    run_query(stream("k string, v long", batches), "append", sink, name="numbered")
    keys = [row["k"] for row in batches[0]]
    with Client(service.proxy) as client:
        for state in ("before", "after"):
            answers = client.get_many(application, state, keys)
            assert [answer.value.v for answer in answers] == [10, 11, 12, 13, 14]
        for state in ("none", "none_again"):
            answers = client.get_many(application, state, keys)
            assert [(answer.found, answer.epoch) for answer in answers] == [(False, 2)] * 5
        assert client.get(application, "counter", 0).value.rows == 10
