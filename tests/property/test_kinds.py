"""Every kind of state is what its model says, whatever the rows, their order, the disk, the clock and what fails."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.changelog.records import MARKER_KEY
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.envelope import DELETED, Base, Moment, decode_aggregate, deletion
from keyhole.encoding.key_codec import encode_integer
from keyhole.model.epoch import EpochStamp
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, TtlClock
from services.state_server.write.commit import EpochToCommit, StateToCommit
from services.state_server.write.merge import merge_of
from services.state_server.write.spill import StagingRoom
from services.state_server.write.staged import StagedAttempt
from tests.support.bench import Bench
from tests.support.examples import examples
from tests.support.fates import Fate, Fated
from tests.support.models import Model, State, aggregated
from tests.support.states import KEY_GROUPS, content, descriptor, names_in, row

MAP_KEY = (KeyColumn("m", KeyType.INT),)
NAMES = [*names_in(0, 2), *names_in(1, 1)]
TTL_MS = 25
KEEP_MS = 15
SECTIONS: dict[str, dict[str, object]] = {
    "value": {},
    "ranked": {"order_by": "n"},
    "reducing": {"kind": StateKind.REDUCING, "reducers": ("sum",)},
    "map": {"kind": StateKind.MAP, "map_key": MAP_KEY},
    "ranked map": {"kind": StateKind.MAP, "map_key": MAP_KEY, "order_by": "n"},
    "ranked, deletions too": {"order_by": "n", "keep_deleted_ms": KEEP_MS},
    "ranked map, deletions too": {
        "kind": StateKind.MAP,
        "map_key": MAP_KEY,
        "order_by": "n",
        "keep_deleted_ms": KEEP_MS,
    },
    "reducing with map key": {"kind": StateKind.REDUCING, "reducers": ("sum",), "map_key": MAP_KEY},
    "list": {"kind": StateKind.LIST},
    "list of three": {"kind": StateKind.LIST, "max_length": 3},
    "aggregating": {"kind": StateKind.AGGREGATING},
}
LIVES: dict[str, dict[str, object]] = {
    "for ever": {},
    "by the clock": {"ttl_ms": TTL_MS},
    "by the watermark": {"ttl_ms": TTL_MS, "ttl_clock": TtlClock.EVENT_TIME},
}

Staged = list[tuple[bytes, bytes | None]]
"""Rows as tasks stage them; what clears a key may come several times."""

numbers = st.sampled_from([0.0, 1.0, 2.0, 3.0])


@st.composite
def ordered_rows(draw: st.DrawFn, of: StateDescriptor) -> Staged:
    orders = st.none() | numbers
    codec = StateCodec(of)
    rows: Staged = []
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3)):
        prefix = codec.prefix(name)
        if of.map_key:
            if draw(st.booleans()):
                rows.append((prefix, deletion(draw(orders))))
            entries = draw(st.dictionaries(st.integers(-1, 1), st.tuples(st.booleans(), orders), max_size=3))
            places = [(prefix + encode_integer(at, 4), *what) for at, what in entries.items()]
        else:
            places = [(prefix, draw(st.booleans()), draw(orders))]
        rows += [(place, deletion(n) if deletes else row(n)) for place, deletes, n in places]
    return rows


@st.composite
def staged_rows(draw: st.DrawFn, of: StateDescriptor) -> Staged:
    if of.keep_deleted_ms:
        return draw(ordered_rows(of))
    codec = StateCodec(of)
    rows: Staged = []
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3)):
        prefix = codec.prefix(name)
        if of.entry_key:
            rows += [(prefix, None)] * draw(st.sampled_from([0, 0, 1, 2]))
        if of.kind is StateKind.LIST:
            elements = draw(st.lists(numbers, max_size=5))
            rows += [(prefix + encode_integer(at, 8), row(n)) for at, n in enumerate(elements)]
        elif of.map_key:
            entries = draw(st.dictionaries(st.integers(-1, 1), st.none() | numbers, max_size=3))
            rows += [(prefix + encode_integer(at, 4), None if n is None else row(n)) for at, n in entries.items()]
        elif (n := draw(st.none() | numbers)) is None:
            rows.append((prefix, None))
        else:
            rows.append((prefix, aggregated(row(n), b"%d" % n) if of.kind is StateKind.AGGREGATING else row(n)))
    return rows


@dataclass
class Plan:
    """An epoch: its rows, what becomes of the tries to commit it, and how much time has passed before it."""

    rows: Staged
    fates: list[Fate]
    passed_ms: int
    replace: bool


def plans(of: StateDescriptor) -> st.SearchStrategy[list[Plan]]:
    fates = st.lists(st.sampled_from(Fate), max_size=2)
    plan = st.builds(Plan, staged_rows(of), fates, st.integers(0, TTL_MS), st.sampled_from([False] * 5 + [True]))
    return st.lists(plan, max_size=7)


class Owner:
    """Stages and commits these, and knows what the state must be."""

    def __init__(self, of: StateDescriptor, room: StagingRoom | None, seed: int) -> None:
        self._of = of
        self._room = room
        self._random = random.Random(seed)
        self.fated = Fated(Bench(of))
        self.model = Model(of)
        self.expected: dict[int, State] = {group: {} for group in range(KEY_GROUPS)}
        self.now = Moment(1000, 1000)

    def run(self, number: int, plan: Plan) -> None:
        self.now = Moment(self.now.time_ms + plan.passed_ms, self.now.watermark_ms + plan.passed_ms)
        for fate in plan.fates:
            self._commit(number, plan, fate)
            # The next try is of another time, but of the same watermark.
            self.now = self.now._replace(time_ms=self.now.time_ms + 1)
        self._commit(number, plan, None)
        for group in range(KEY_GROUPS):
            rows = {name: value for name, value in plan.rows if int.from_bytes(name[:2], "big") == group}
            before = {} if plan.replace else self.expected[group]
            self.expected[group] = self.model.apply(before, rows, number, self._committed_at(group, number))

    def _committed_at(self, group: int, number: int) -> Moment:
        position = self.fated.bench.state.position(group)
        return Moment(position.commit_time_ms, position.watermark_ms) if position.epoch == number else self.now

    def _commit(self, number: int, plan: Plan, fate: Fate | None) -> None:
        attempt = StagedAttempt("app/counts", KEY_GROUPS, 511, merge_of(self._of), self._room)
        rows = self._random.sample(self._numbered(plan.rows), len(plan.rows))
        size = self._random.randint(1, 4)
        for start in range(0, len(rows), size):
            attempt.add(*map(list, zip(*rows[start : start + size], strict=True)))
            if self._room is not None and self._random.random() < 0.5:
                attempt.spill()
        states = {"counts": StateToCommit([attempt], attempt.receipts(), plan.replace)}
        part = EpochToCommit(EpochStamp(number, 1, *self.now), 0, states)
        if fate is None:
            assert not any(item.differs for item in self.fated.bench.commit(part).values())
        else:
            self.fated.commit(part, fate)
        attempt.close()

    def _numbered(self, rows: Staged) -> Staged:
        """Elements of lists keep their order, and get other numbers each time."""
        if self._of.kind is not StateKind.LIST:
            return rows
        first = self._random.randint(0, 999)
        return [
            (name, value) if value is None else (name[:-8] + encode_integer(first + name[-1], 8), value)
            for name, value in rows
        ]

    def check(self) -> None:
        held = content(self.fated.bench.state.store)
        for group in range(KEY_GROUPS):
            of_group = {name: value for name, value in held.items() if int.from_bytes(name[:2], "big") == group}
            self.model.check(of_group, self.expected[group], self.now)

    def check_log(self) -> None:
        """Of each transaction the keys are ascending, and each is there once; the last record is the marker."""
        for group in range(KEY_GROUPS):
            names: list[bytes] = []
            for name, _ in self.fated.bench.log(group):
                if name == MARKER_KEY:
                    assert names == sorted(set(names))
                    names = []
                else:
                    names.append(name)
            assert not names


@pytest.mark.parametrize("lives", LIVES)
@pytest.mark.parametrize("kind", SECTIONS)
@given(data=st.data(), on_disk=st.booleans(), seed=st.integers(0, 999))
@settings(max_examples=examples(30), deadline=None)
def test_the_state_is_what_its_model_says(kind: str, lives: str, data: st.DataObject, on_disk: bool, seed: int) -> None:
    of = descriptor(**SECTIONS[kind], **LIVES[lives])
    room = StagingRoom(0, 1 << 30, Path(tempfile.gettempdir())) if on_disk else None
    owner = Owner(of, room, seed)
    epochs: Sequence[Plan] = data.draw(plans(of))
    for number, plan in enumerate(epochs, start=1):
        owner.run(number, plan)
        owner.check()
    before = content(owner.fated.bench.state.store)
    owner.fated.lose_store()
    assert content(owner.fated.bench.state.store) == before, "the changelog alone gives another state"
    owner.check_log()
    # Whoever waits long enough finds nothing that has expired, in the store and in the changelog.
    for number in range(len(epochs) + 1, len(epochs) + 3):
        owner.run(number, Plan([], [], TTL_MS, False))
    owner.check()
    held = content(owner.fated.bench.state.store)
    assert not (held if of.ttl_ms else [entry for entry in held.values() if entry.startswith(DELETED)])


@given(data=st.data())
@settings(max_examples=examples(50), deadline=None)
def test_an_aggregate_tells_what_the_key_was_merged_with_before_its_epoch(data: st.DataObject) -> None:
    of = descriptor(kind=StateKind.AGGREGATING)
    owner = Owner(of, None, 0)
    bases: Mapping[bytes, Base] = {}
    for number, plan in enumerate(data.draw(plans(of)), start=1):
        owner.run(number, plan)
        held = {name: decode_aggregate(stored) for name, stored in content(owner.fated.bench.state.store).items()}
        for name, entry in held.items():
            assert entry.as_of(number + 1) == Base(entry.accumulator, 1)
            if entry.epoch == number and not plan.replace:
                assert entry.as_of(number) == bases.get(name)
            elif entry.epoch < number:
                assert entry.as_of(number) == bases[name]
        bases = {name: Base(entry.accumulator, 1) for name, entry in held.items()}
