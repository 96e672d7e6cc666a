"""One query that feeds a state of every kind, and what plain Python makes of the same rows."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from keyhole.config import JobConfig
from keyhole.spark import queryable
from keyhole.spark.sink import Sink

SCHEMA = "k string, m int, v bigint, at timestamp, op string"
KEYS = [f"k{number}" for number in range(8)]
ABSENT = "nobody"
SUBTASKS = 2
LONGEST = 5

# A batch is of one hour, and the next one of ten hours later. The watermark is that of the batch before.
_START, _APART = datetime(2026, 1, 1, tzinfo=UTC), timedelta(hours=10)
WATERMARK = "10 minutes"
_TTL = timedelta(hours=5)


class Mean:
    """Of the values of a key."""

    commutative = True

    def create(self) -> list[int]:
        return [0, 0]

    def add(self, accumulator: list[int], row: Any) -> list[int]:
        return [accumulator[0] + row.v, accumulator[1] + 1]

    def merge(self, one: list[int], other: list[int]) -> list[int]:
        return [one[0] + other[0], one[1] + other[1]]

    def result(self, accumulator: list[int]) -> Mapping[str, Any]:
        return {"mean": accumulator[0] / accumulator[1], "rows": accumulator[1]}


class Tally:
    """How many rows a subtask has had."""

    def process(self, subtask: queryable.Subtask, elements: list[Any], rows: Iterator[Any]) -> list[Any]:
        return [sum(elements) + sum(1 for _ in rows)]

    def result(self, elements: Sequence[Any]) -> Mapping[str, Any]:
        return {"rows": sum(elements)}


class Packed:
    """Values as the job's own bytes."""

    def encode(self, row: Any) -> bytes:
        return packed(row.v)


def packed(v: int) -> bytes:
    return b"\xff\x00" + str(v).encode()


def all_kinds(config: JobConfig, **options: Any) -> Sink:
    """The states. `options`: of the query."""
    of: dict[str, Any] = {"value": ["v"], "op": "op", "config": config}
    groups: dict[str, Any] = {**of, "key_groups": 4}
    lives: dict[str, Any] = {"ttl": _TTL, "ttl_clock": "event_time"}
    reducers = {"v": "sum", "at": "max"}
    return queryable.together(
        queryable.value("last", key="k", order_by="at", **groups),
        queryable.value("pairs", key=["k", "m"], **groups),
        queryable.map("per_m", key="k", map_key="m", **groups),
        queryable.list("log", key="k", order_by="at", max_length=LONGEST, **groups),
        queryable.reducing("sums", key="k", reducers=reducers, key_groups=4, op="op", config=config),
        queryable.aggregating("mean", key="k", aggregator=Mean(), result="mean double, rows bigint", **groups),
        queryable.broadcast("rules", key="k", order_by="at", **of),
        queryable.operator("seen", operator=Tally(), result="rows bigint", subtasks=SUBTASKS, config=config),
        queryable.value("recent", key="k", order_by="at", **groups, **lives),
        queryable.map("packed", key="k", map_key="m", codec=Packed(), **groups),
        **options,
    )


def batches(seed: int = 5) -> list[list[dict[str, Any]]]:
    """Rows whose times rise from each to the next one. Keys are put, deleted, cleared, put again; some fall silent.

    In a batch there is one row of each (k, m), and a key that is deleted has no other row.
    """
    draw = random.Random(seed)

    def puts(keys: Sequence[str], rows: int) -> list[dict[str, Any]]:
        places = [(k, m) for k in keys for m in range(-4, 4)]
        some = [(k, draw.randrange(-4, 4)) for k in keys]  # each key at least once
        more = draw.sample([place for place in places if place not in some], rows - len(some))
        return [{"k": k, "m": m, "v": draw.randrange(1000)} for k, m in [*some, *more]]

    first = puts(KEYS, 40)
    deleted = next(row["m"] for row in first if row["k"] == "k5")
    gone = [{"k": "k5", "m": deleted, "op": "delete"}, {"k": "k6", "m": deleted, "op": "clear"}]
    made = [first, [*puts(KEYS[:5], 25), *gone], puts([*KEYS[:4], "k6"], 25)]
    for number, rows in enumerate(made):
        for place, row in enumerate(rows):
            row["at"] = (_START + number * _APART + timedelta(minutes=place)).isoformat()
    return made


@dataclass
class Recount:
    """What the states must hold. By key, unless it says otherwise; keys that there are not are left out.

    Attributes:
        last: And of a broadcast state, the same.
        pairs: By key and map key.
        recent: Of `last`, what has not expired.
        seen: Rows that all subtasks have had.
    """

    last: dict[str, int] = field(default_factory=dict)
    pairs: dict[tuple[str, int], int] = field(default_factory=dict)
    per_m: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    log: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    values: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    times: dict[str, datetime] = field(default_factory=dict)
    recent: dict[str, int] = field(default_factory=dict)
    seen: int = 0


def recount(made: Sequence[Sequence[Mapping[str, Any]]]) -> Recount:
    """Row by row."""
    of = Recount()
    watermarks = [datetime.fromisoformat(rows[-1]["at"]) - timedelta(minutes=10) for rows in made]
    expires: dict[str, datetime] = {}
    for number, rows in enumerate(made):
        of.seen += len(rows)
        for row in rows:
            k, m, v = row["k"], row["m"], row.get("v")
            if v is None:
                _forget(of, row)
                continue
            of.last[k] = of.pairs[k, m] = of.per_m[k][m] = v
            of.values[k].append(v)
            of.log[k] = [*of.log[k], v][-LONGEST:]
            of.times[k] = datetime.fromisoformat(row["at"])
            expires[k] = watermarks[number] + _TTL
    now = watermarks[-2]
    of.recent = {k: v for k, v in of.last.items() if expires[k] > now}
    return of


def _forget(of: Recount, row: Mapping[str, Any]) -> None:
    k, m = row["k"], row["m"]
    for state in (of.last, of.log, of.values, of.times):
        state.pop(k, None)  # type: ignore[attr-defined]  # all are dictionaries by key
    of.pairs.pop((k, m), None)
    if row["op"] == "clear":
        of.per_m.pop(k, None)
    else:
        of.per_m[k].pop(m, None)
