"""What is computed of many entries where they are: how many, the sum, least, greatest or average of a field, the top n.

    from keyhole import aggregates as agg

    state.aggregate({"n": agg.count(), "hottest": agg.max("max"), "first": agg.top(10, "max")})

docs/predicates.md says what each means of null, NaN and decimals. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from keyhole.errors import MalformedRequest
from keyhole.model.given import flag_of, whole_of
from keyhole.model.predicates import FieldPath

MOST_TOP = 1_000
"""The most entries of a `top`."""
MOST_AGGREGATES = 64
"""The most of one request."""


class AggregateKind(enum.Enum):
    """What is computed; numbers are those of the wire."""

    COUNT = 1
    SUM = 2
    MIN = 3
    MAX = 4
    AVERAGE = 5
    TOP = 6


@dataclass(frozen=True, slots=True)
class AskedAggregate:
    """One figure over entries.

    Attributes:
        path: Of which field; None: COUNT alone, of all entries.
        entries: TOP: how many.
        smallest: TOP: those with the least values.
    """

    kind: AggregateKind
    path: FieldPath | None = None
    entries: int = 0
    smallest: bool = False


def count(name: str | None = None, *inner: str) -> AskedAggregate:
    """How many entries there are; with a field, of how many it is not null."""
    return AskedAggregate(AggregateKind.COUNT, None if name is None else FieldPath(name, inner))


def sum(name: str, *inner: str) -> AskedAggregate:  # noqa: A001 - as Spark calls it
    """The sum of a number; None where all are null. Exact for whole numbers and decimals, however large."""
    return AskedAggregate(AggregateKind.SUM, FieldPath(name, inner))


def min(name: str, *inner: str) -> AskedAggregate:  # noqa: A001
    """The least value; None where all are null. NaN is above all other numbers."""
    return AskedAggregate(AggregateKind.MIN, FieldPath(name, inner))


def max(name: str, *inner: str) -> AskedAggregate:  # noqa: A001
    """The greatest value; None where all are null. NaN is above all other numbers."""
    return AskedAggregate(AggregateKind.MAX, FieldPath(name, inner))


def avg(name: str, *inner: str) -> AskedAggregate:
    """The average of a number: a float, or of decimals a Decimal with four places more; None where all are null."""
    return AskedAggregate(AggregateKind.AVERAGE, FieldPath(name, inner))


def top(entries: int, name: str, *inner: str, smallest: bool = False) -> AskedAggregate:
    """The entries with the greatest values of a field, the greatest first; those of null don't count.

    Of equal values those come first whose keys do, as bytes.

    Args:
        entries: How many, 1 to MOST_TOP.
        smallest: Those with the least values, the least first.

    Raises:
        MalformedRequest: Another number.
    """
    most = whole_of(entries)
    if most is None or not 1 <= most <= MOST_TOP:
        raise MalformedRequest(f"top is asked for {entries!r} entries; it gives from 1 to {MOST_TOP:,}")
    return AskedAggregate(AggregateKind.TOP, FieldPath(name, inner), most, flag_of("smallest", smallest))


def checked_aggregates(given: Mapping[str, AskedAggregate]) -> Mapping[str, AskedAggregate]:
    """The same. Raises MalformedRequest: It is none, or holds something else."""
    if not isinstance(given, Mapping) or not given or len(given) > MOST_AGGREGATES:
        raise MalformedRequest(
            f'aggregates are given by names of yours, up to {MOST_AGGREGATES} of them: {{"hottest": agg.max("max")}}'
        )
    for name, one in given.items():
        if not isinstance(one, AskedAggregate):
            raise MalformedRequest(f"what is given as {name!r} is no aggregate; make one by keyhole.aggregates")
    return given
