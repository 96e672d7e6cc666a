"""Operator state from real streaming queries: what subtasks hold, and what becomes of it when their number changes."""

from __future__ import annotations

from collections import Counter as Recount
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from keyhole.config import JobConfig
from keyhole.model.read import Answer
from keyhole.spark import queryable
from keyhole.spark.sink import Sink
from tests.spark.test_state_kinds import KEYS, SCHEMA, random_rows
from tests.support.object_store import ObjectStore, reaching
from tests.support.scenario import Scenario, Scenarios


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


def nothing(data: DataFrame) -> DataFrame:
    return data.where("false")


SUBTASKS = (2, 5, 1)


@dataclass(frozen=True)
class AfterBatch:
    """What an operator's subtasks held after a batch, each run of the query with another number of them.

    Attributes:
        counters: Of all that there may be; those that aren't found hold nothing.
        elements: Of the witnesses.
    """

    subtasks: int
    counters: Sequence[Answer]
    elements: Sequence[Sequence[int]]

    @property
    def held(self) -> list[Any]:
        return [of.value for of in self.counters if of.found]

    @property
    def counts(self) -> list[Counts]:
        return [of.counts for of in self.held[: self.subtasks]]


@dataclass(frozen=True)
class Rescaled:
    """A query that was started anew for each of its batches, and the states that it staged beside its operators."""

    scenario: Scenario
    batches: Sequence[Sequence[Mapping[str, Any]]]
    after: Sequence[AfterBatch]


def numbered(subtasks: int, config: JobConfig) -> Sink:
    """Operators among states of which some have no rows: Spark leaves a plan that has none out of the job; the
    partitions after it have other numbers then.
    """
    options: dict[str, Any] = {"subtasks": subtasks, "config": config}
    of: dict[str, Any] = {"key": "k", "value": ["v"], "order_by": "v", "config": config}
    return queryable.together(
        queryable.value("none", key_groups=4, **of).of(nothing),
        queryable.value("before", key_groups=8, **of),
        queryable.operator("counter", operator=Counter(), result=COUNTED, **options),
        queryable.value("none_again", key_groups=16, **of).of(nothing),
        queryable.value("after", key_groups=2, **of),
        queryable.operator("witness", operator=Witness(), result="elements array<int>", mode="union", **options),
    )


@pytest.fixture(scope="module")
def rescaled(scenarios: Scenarios) -> Rescaled:
    scenario, batches, after = scenarios(), random_rows(3), list[AfterBatch]()
    data = scenario.stream(SCHEMA, batches)
    for number, subtasks in enumerate(SUBTASKS):
        sink = numbered(subtasks, scenario.config)

        def one_batch(rows: DataFrame, batch_id: int, sink: Sink = sink, number: int = number) -> None:
            if batch_id > number:
                raise Enough
            sink(rows, batch_id)

        with suppress(StreamingQueryException):
            scenario.run(data, "append", one_batch, name="counting", partitions=4)
        counters = [scenario.get("counter", index) for index in range(5)]
        witnesses = [scenario.get("witness", index) for index in range(subtasks)]
        after.append(AfterBatch(subtasks, counters, [list(of.value.elements) for of in witnesses]))
    return Rescaled(scenario, batches, after)


def test_operator_state_follows_its_subtasks_when_their_number_changes(rescaled: Rescaled) -> None:
    before: list[Counts] = []
    for number, after in enumerate(rescaled.after):
        assert counted_since(before, after.counts) == Recount(row["k"] for row in rescaled.batches[number])
        totals = sum((Recount(of) for of in after.counts), Recount())
        assert totals == Recount(row["k"] for batch in rescaled.batches[: number + 1] for row in batch)
        before = after.counts


@pytest.mark.parametrize("number", range(len(SUBTASKS)), ids=[f"{subtasks} subtasks" for subtasks in SUBTASKS])
def test_each_subtask_has_a_state_and_no_other_one_holds_anything(rescaled: Rescaled, number: int) -> None:
    after = rescaled.after[number]
    assert [sum(of.counts.values()) for of in after.held] == [of.rows for of in after.held]
    others = len(after.held) - after.subtasks
    assert [len(of.counts) > 0 for of in after.held] == [True] * after.subtasks + [False] * others


def test_each_subtask_is_given_all_elements_of_a_union_state(rescaled: Rescaled) -> None:
    assert [after.elements for after in rescaled.after] == [
        [[0], [1]],
        [[0, 1]] * 5,
        [[0, 0, 0, 0, 0, 1, 1, 1, 1, 1]],
    ]


@pytest.mark.parametrize("state", ["before", "after"])
def test_of_states_that_one_job_stages_some_may_have_no_rows_and_others_count_their_partitions(
    rescaled: Rescaled, state: str
) -> None:
    rows = [row for batch in rescaled.batches for row in batch]
    highest = {key: max(row["v"] for row in rows if row["k"] == key) for key in KEYS}
    answers = rescaled.scenario.get_many(state, KEYS)
    assert {key: answer.value.v for key, answer in zip(KEYS, answers, strict=True)} == highest
    (counter,) = rescaled.after[-1].held[:1]
    assert counter.rows == len(rows)


@pytest.mark.parametrize("state", ["none", "none_again"])
def test_a_state_that_has_no_rows_has_the_epochs_of_the_others(rescaled: Rescaled, state: str) -> None:
    answers = rescaled.scenario.get_many(state, KEYS)
    assert [(answer.found, answer.epoch) for answer in answers] == [(False, 3)] * 5


def test_a_batch_that_is_run_again_has_the_subtasks_that_it_had_at_first(scenarios: Scenarios) -> None:
    """Servers may have committed their parts of it: with other subtasks the rest would not fit to them."""
    run_each_batch_again(scenarios(), "checkpoint")


def test_so_it_has_where_their_number_is_in_an_object_store(scenarios: Scenarios, object_store: ObjectStore) -> None:
    scenario = scenarios()
    with reaching(object_store, scenario.spark):
        run_each_batch_again(scenario, object_store.at(scenario.application))
    names = object_store.names(scenario.application)
    assert [f"keyhole/subtasks/counter/{batch}" in names for batch in range(5)] == [True] * 4 + [False]


def run_each_batch_again(scenario: Scenario, checkpoint: str) -> None:
    """With another number of subtasks each time; the counts are those of each batch once."""
    batches = random_rows(4)
    data = scenario.stream(SCHEMA, batches)
    seen: list[tuple[int, list[Counts]]] = []
    for first, subtasks in ((0, 2), (0, 5), (1, 1), (2, 3)):

        def parted(rows: DataFrame, subtasks: int = subtasks) -> DataFrame:
            return rows.repartition(subtasks)

        options: dict[str, Any] = {"operator": Counter(), "result": COUNTED, "config": scenario.config}
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
            for state in ("counter", "by_partition"):
                held = [of.value.counts for of in scenario.get_many(state, range(5)) if of.found]
                counts.append(sum((Recount(of) for of in held), Recount()))
            seen.append((batch_id, counts))
            if batch_id == last or not seen[1:]:
                # Its epoch is complete, and Spark hears nothing of that.
                raise Enough

        with suppress(StreamingQueryException):
            scenario.run(data, "append", two_batches, name="counting", checkpoint=checkpoint)
    assert [batch for batch, _ in seen] == [0, 0, 1, 1, 2, 2, 3]
    for batch, counts in seen:
        assert counts == [Recount(row["k"] for of in batches[: batch + 1] for row in of)] * 2
