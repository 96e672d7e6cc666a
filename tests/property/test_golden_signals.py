"""Signals don't depend on how rows are split, ordered and merged; percentiles are within the sketch's bound."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from jobs.golden_signals.recount import Measured
from jobs.golden_signals.signals import Accumulator, GoldenSignals

SIGNALS = GoldenSignals()


class Row(NamedTuple):
    duration_us: int | None = None
    failed: bool | None = None
    cpu_permille: int | None = None
    memory_permille: int | None = None


DURATIONS = st.one_of(st.integers(0, 3), st.integers(0, 86_400_000_000), st.integers(0, 10_000_000))
REQUESTS = st.builds(Row, DURATIONS, st.booleans(), st.none(), st.none())
LOADS = st.builds(Row, st.none(), st.none(), st.integers(0, 1000), st.integers(0, 1000))
ROWS = st.lists(st.one_of(REQUESTS, LOADS), max_size=30)


def of(rows: list[Row]) -> Accumulator:
    accumulator = SIGNALS.create()
    for row in rows:
        accumulator = SIGNALS.add(accumulator, row)
    return accumulator


def seen(accumulator: Accumulator) -> tuple[object, bytes]:
    """All that anybody can tell of it."""
    return SIGNALS.result(accumulator), SIGNALS.encode(accumulator)


@given(ROWS, ROWS, ROWS)
def test_merging_is_commutative_associative_and_the_same_as_adding(a: list[Row], b: list[Row], c: list[Row]) -> None:
    one, two, three = of(a), of(b), of(c)
    before = seen(one), seen(two), seen(three)
    assert seen(SIGNALS.merge(one, two)) == seen(SIGNALS.merge(two, one)) == seen(of(a + b))
    left, right = SIGNALS.merge(SIGNALS.merge(one, two), three), SIGNALS.merge(one, SIGNALS.merge(two, three))
    assert seen(left) == seen(right) == seen(of(c + a + b))
    assert seen(SIGNALS.merge(one, SIGNALS.create())) == seen(one)
    assert (seen(one), seen(two), seen(three)) == before


@given(ROWS, ROWS)
def test_what_was_decoded_goes_on_as_what_was_encoded(a: list[Row], b: list[Row]) -> None:
    decoded = SIGNALS.decode(SIGNALS.encode(of(a)))
    assert seen(decoded) == seen(of(a))
    assert seen(SIGNALS.merge(decoded, of(b))) == seen(SIGNALS.merge(of(a), decoded_and(b))) == seen(of(a + b))
    for row in b:
        decoded = SIGNALS.add(decoded, row)
    assert seen(decoded) == seen(of(a + b))


def decoded_and(rows: list[Row]) -> Accumulator:
    return SIGNALS.decode(SIGNALS.encode(of(rows)))


@given(st.lists(st.one_of(REQUESTS, LOADS), max_size=300))
def test_every_field_is_exact_but_percentiles_which_are_within_the_bound(rows: list[Row]) -> None:
    measured = Measured()
    for row in rows:
        if row.duration_us is not None:
            measured.durations_us.append(row.duration_us)
            measured.errors += bool(row.failed)
        elif row.cpu_permille is not None and row.memory_permille is not None:
            measured.cpu_permille.append(row.cpu_permille)
            measured.memory_permille.append(row.memory_permille)
    assert measured.wrong(SIGNALS.result(of(rows))) == []
