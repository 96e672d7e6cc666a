"""A job that is stopped and goes on with later versions of its aggregator, its operator and its codec."""

from __future__ import annotations

import json
from collections import Counter as Recount
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from keyhole.config import JobConfig
from keyhole.errors import KeyholeError, StateChanged
from keyhole.spark import queryable
from keyhole.spark.sink import Sink
from tests.support.scenario import Scenario, Scenarios
from tests.support.versions import VERSIONS

SCHEMA = "k string, v bigint"
KEYS = [f"k{number}" for number in range(5)]


class Pairs:
    """Counts rows by key; its elements are pairs."""

    def process(self, subtask: queryable.Subtask, elements: list[Any], rows: Iterator[Any]) -> list[Any]:
        return [list(of) for of in self.counted(elements, rows).items()]

    def counted(self, elements: list[Any], rows: Iterator[Any]) -> dict[str, int]:
        counts = Recount[str]()
        for key, count in elements:
            counts[key] += count
        counts.update(row.k for row in rows)
        return counts

    def result(self, elements: Sequence[Any]) -> Mapping[str, Any]:
        return {"counts": elements}


class Named(Pairs):
    """The same, by name."""

    version = 2

    def process(self, subtask: queryable.Subtask, elements: list[Any], rows: Iterator[Any]) -> list[Any]:
        counts = self.counted([(of["key"], of["count"]) for of in elements], rows)
        return [{"key": key, "count": count} for key, count in counts.items()]

    def result(self, elements: Sequence[Any]) -> Mapping[str, Any]:
        return {"counts": [(of["key"], of["count"]) for of in elements]}

    def upgrade(self, elements: list[Any], version: int) -> list[Any]:
        return [{"key": key, "count": count} for key, count in elements]


class Text:
    def encode(self, row: Any) -> bytes:
        return str(row.v).encode()


class Json:
    version = 2

    def encode(self, row: Any) -> bytes:
        return json.dumps({"v": row.v}).encode()


OPERATORS = {1: Pairs, 2: Named}
CODECS = {1: Text, 2: Json}


def sink(config: JobConfig, version: int, subtasks: int) -> Sink:
    of: dict[str, Any] = {"key": "k", "key_groups": 4, "config": config}
    result = "total bigint, rows bigint"
    return queryable.together(
        queryable.aggregating("totals", aggregator=VERSIONS[version](), value=["v"], result=result, **of),
        queryable.operator(
            "counts",
            operator=OPERATORS[version](),
            result="counts map<string,bigint>",
            subtasks=subtasks,
            config=config,
        ),
        queryable.value("packed", codec=CODECS[version](), value=["v"], **of),
    )


def rows(first: int, keys: Sequence[str] = KEYS) -> list[dict[str, Any]]:
    """Of each key one."""
    return [{"k": key, "v": first + number} for number, key in enumerate(keys)]


BATCHES = [rows(1), rows(20), rows(300, KEYS[:2]), rows(4000)]


@dataclass(frozen=True)
class Seen:
    """What readers get."""

    totals: dict[str, tuple[int, int]]
    counts: dict[str, int]
    packed: dict[str, dict[str, Any]]


def seen(scenario: Scenario) -> Seen:
    def by_key(state: str) -> dict[str, Any]:
        return {key: of.value for key, of in zip(KEYS, scenario.get_many(state, KEYS), strict=True)}

    counts = Recount[str]()
    for answer in scenario.get_many("counts", range(3)):
        counts.update(answer.value.counts if answer.found else {})
    return Seen(
        {key: (of.total, of.rows) for key, of in by_key("totals").items()},
        counts,
        {key: of.asdict() for key, of in by_key("packed").items()},
    )


@dataclass(frozen=True)
class Ran:
    """What was seen after the run of the first versions, after a batch of half of the keys by the second ones, and at
    the end; in between a start with the first ones was refused."""

    first: Seen
    half: Seen
    refused: KeyholeError | None
    last: Seen
    fields: Sequence[str]


@pytest.fixture(scope="module")
def ran(scenarios: Scenarios) -> Ran:
    scenario = scenarios()

    def run(batches: int, version: int, subtasks: int) -> Sink:
        made = sink(scenario.config, version, subtasks)
        scenario.run(scenario.stream(SCHEMA, BATCHES[:batches]), "append", made, name="counting")
        return made

    run(2, 1, 2)
    first = seen(scenario)
    run(3, 2, 3)
    half = seen(scenario)
    back = sink(scenario.config, 1, 3)
    with pytest.raises(StreamingQueryException):
        scenario.run(scenario.stream(SCHEMA, BATCHES), "append", back, name="counting")
    assert seen(scenario) == half
    run(4, 2, 3)
    fields = scenario.client.describe_state(scenario.application, "packed").value.fields
    return Ran(first, half, back.failure, seen(scenario), [field.name for field in fields])


def recount(batches: int) -> dict[str, tuple[int, int]]:
    values: dict[str, list[int]] = {key: [] for key in KEYS}
    for row in (row for batch in BATCHES[:batches] for row in batch):
        values[row["k"]].append(row["v"])
    return {key: (sum(of), len(of)) for key, of in values.items()}


def test_an_aggregation_goes_on_with_a_later_version_as_if_it_had_been_of_it_always(ran: Ran) -> None:
    assert [ran.first.totals, ran.half.totals, ran.last.totals] == [recount(2), recount(3), recount(4)]


def test_an_operator_goes_on_with_a_later_version_and_another_number_of_subtasks(ran: Ran) -> None:
    for after, batches in ((ran.first, 2), (ran.half, 3), (ran.last, 4)):
        assert after.counts == {key: count for key, (_, count) in recount(batches).items()}


def test_readers_are_told_which_version_of_a_codec_has_made_each_value(ran: Ran) -> None:
    old = {key: {"value": str(20 + number).encode(), "version": 1} for number, key in enumerate(KEYS)}
    half = {key: {"value": json.dumps({"v": 300 + number}).encode(), "version": 2} for number, key in enumerate(KEYS)}
    assert ran.first.packed == {key: {"value": of["value"]} for key, of in old.items()}
    assert ran.half.packed == old | {key: half[key] for key in KEYS[:2]}
    assert {of["version"] for of in ran.last.packed.values()} == {2}
    assert list(ran.fields) == ["value", "version"]


def test_an_earlier_version_is_refused_at_its_first_batch_and_the_later_one_goes_on(ran: Ran) -> None:
    assert isinstance(ran.refused, StateChanged)
    assert "written by version 2 of its class, and the job has version 1" in ran.refused.message
