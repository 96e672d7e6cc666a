"""A sum counts every row once, whatever the split into epochs and tasks, and whatever fails on the way."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.reducers import REDUCERS, Place, Reduce
from keyhole.encoding.row_codec import encode_row
from keyhole.model.epoch import EpochStamp
from keyhole.model.state import StateDescriptor, StateKind, ValueField, ValueSchema
from services.state_server.write.commit import EpochToCommit, StateToCommit
from services.state_server.write.merge import merge_of
from services.state_server.write.staged import StagedAttempt
from tests.support.bench import Bench
from tests.support.fates import Fate, Fated
from tests.support.states import KEY_GROUPS, content, descriptor, key, names_in

SUMS = descriptor(
    kind=StateKind.REDUCING,
    reducers=("sum", "count", "max"),
    value=ValueSchema(1, (ValueField("total", "bigint"), ValueField("events", "bigint"), ValueField("top", "int"))),
)
NAMES = [name for group in range(KEY_GROUPS) for name in names_in(group, 2)]
CODEC = StateCodec(SUMS)

Event = tuple[str, int | None]


class Owner:
    """A server that is restored under a new grant after whatever went wrong."""

    def __init__(self, of: StateDescriptor) -> None:
        self.fated = Fated(Bench(of))
        self._of = of

    def run(self, number: int, events: Sequence[Event], fates: Sequence[Fate], seed: int) -> None:
        for fate in fates:
            self.fated.commit(self._epoch(number, events, seed), fate)
        committed = self.fated.bench.commit(self._epoch(number, events, seed + 1))
        assert not any(item.differs for item in committed.values())

    def _epoch(self, number: int, events: Sequence[Event], seed: int) -> EpochToCommit:
        """Each time anew, as tasks would: in another order, in chunks of another size."""
        draw = random.Random(seed)
        rows = [(key(name), encode_row(1, [n, 0 if n is None else 1, n])) for name, n in events]
        draw.shuffle(rows)
        attempt = StagedAttempt("app/counts", KEY_GROUPS, 511, merge_of(self._of))
        size = draw.randint(1, 5)
        for start in range(0, len(rows), size):
            attempt.add(*map(list, zip(*rows[start : start + size], strict=True)))
        states = {"counts": StateToCommit([attempt], attempt.receipts(), False)}
        return EpochToCommit(EpochStamp(number, 1, number, 0), 0, states)

    def rows(self) -> dict[str, tuple[object, ...]]:
        found = content(self.fated.bench.state.store)
        return {
            name: tuple(CODEC.decode_row(found[key(name)]).asdict().values()) for name in NAMES if key(name) in found
        }


def recount(events: Sequence[Event]) -> dict[str, tuple[object, ...]]:
    values: dict[str, list[int]] = {name: [] for name, _ in events}
    for name, n in events:
        if n is not None:
            values[name].append(n)
    return {
        name: (sum(numbers) if numbers else None, len(numbers), max(numbers, default=None))
        for name, numbers in values.items()
    }


events = st.lists(
    st.tuples(st.sampled_from(NAMES), st.none() | st.integers(-(1 << 31), (1 << 31) - 1)),
    max_size=40,
)


@given(
    st.lists(st.tuples(events, st.lists(st.sampled_from(Fate), max_size=4)), max_size=6),
    st.integers(0, 1 << 16),
)
@settings(deadline=None)
def test_any_split_into_epochs_attempts_replays_and_crashes_gives_the_recount(
    epochs: list[tuple[list[Event], list[Fate]]], seed: int
) -> None:
    owner = Owner(SUMS)
    for number, (of_epoch, fates) in enumerate(epochs, start=1):
        owner.run(number, of_epoch, fates, seed)
    everything = [event for of_epoch, _ in epochs for event in of_epoch]
    assert owner.rows() == recount(everything)


@given(events)
@settings(deadline=None)
def test_the_changelog_alone_gives_the_same_rows(of_epoch: list[Event]) -> None:
    owner = Owner(SUMS)
    for number in (1, 2):
        owner.run(number, of_epoch, [], seed=number)
    before = owner.rows()
    owner.fated.lose_store()
    assert owner.rows() == before == recount(of_epoch * 2)


def reduce_of(name: str, kind: str) -> Reduce:
    """Of rows that have one field, and no version."""
    place = Place(ValueField("n", kind), 0)
    return REDUCERS[name].reduce(place, place)


numbers = st.none() | st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf])


@given(st.lists(numbers, min_size=3, max_size=3), st.sampled_from(["min", "max"]))
def test_min_and_max_of_doubles_do_not_depend_on_the_order_of_rows(values: list[float | None], name: str) -> None:
    reduce = reduce_of(name, "double")
    a, b, c = ((value,) for value in values)
    merged = [reduce((reduce(a, b),), c), reduce(a, (reduce(b, c),)), reduce((reduce(c, a),), b)]
    assert len({encode_row(1, [one]) for one in merged}) == 1


def _positive(n: float | None) -> bool | None:
    return None if n is None else n > 0


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6), st.data())
def test_the_order_of_an_epochs_rows_does_not_show(rows: list[tuple[float | None, ...]], data: st.DataObject) -> None:
    by_name = {"max": "max_by(f0)", "min": "min_by(f0)"}
    for one, by in by_name.items():
        reducers = (one, by, "first", "last", "any", "all")
        kinds = ("double", "double", "double", "double", "boolean", "boolean")
        fields = tuple(ValueField(f"f{n}", kind) for n, kind in enumerate(kinds))
        merge = merge_of(descriptor(kind=StateKind.REDUCING, reducers=reducers, value=ValueSchema(1, fields)))
        # As they are staged: what a row without the first field brings is nothing.
        staged = [
            encode_row(1, [at, None if at is None else value, value, value, *(_positive(n) for n in (at, value))])
            for at, value in rows
        ]
        again = data.draw(st.permutations(staged))
        assert functools.reduce(merge.staged, again) == functools.reduce(merge.staged, staged)


decimals = st.decimals(min_value=-(10**9), max_value=10**9, places=2).map(lambda value: format(value, "f"))


@given(st.lists(decimals, min_size=1, max_size=20))
def test_sums_of_decimals_are_exact_and_keep_their_scale(values: list[str]) -> None:
    reduce = reduce_of("sum", "decimal(21,2)")
    total = values[0]
    for value in values[1:]:
        total = reduce((total,), (value,))
    assert Fraction(total) == sum(map(Fraction, values))
    assert len(total.split(".")[1]) == 2
