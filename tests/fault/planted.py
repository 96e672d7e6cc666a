"""Bugs that are planted into a state server, so that it is shown that the checker catches them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from keyhole.changelog.base import PartitionChanges, RestoredEpochs
from keyhole.changelog.kafka.transactions import PartitionAppend
from keyhole.changelog.kafka.writer import KafkaWriter
from keyhole.encoding.envelope import STAMP_BYTES, Aggregate, Base, Moment
from keyhole.encoding.watch_token import WatchMark
from keyhole.model.read import ReadBounds
from keyhole.model.state import StateDescriptor, TtlClock
from keyhole.stores.base import Advance, Batch, Snapshot
from keyhole.stores.pieces import go_on
from services.state_server.read.copies import Scanned, Show
from services.state_server.read.copy_answers import CopyAnswers
from services.state_server.read.table import Table
from services.state_server.read.visibility import Visibility
from services.state_server.read.watch_given import GivenSoFar
from services.state_server.replica import take_over
from services.state_server.replica.hosted import StateReplica
from services.state_server.write import commit, epoch_writer, merge_entries, merge_expiring
from services.state_server.write.commit import EpochToCommit, StateToCommit
from services.state_server.write.merge_rows import Upsert
from services.state_server.write.merging import CommitContext, EntryChange, Stored, StoredValues
from services.state_server.write.open_group import OpenGroup
from services.state_server.write.staged import StagedAttempt
from tests.fault.planted_lookups import answer_as_before
from tests.fault.planted_scans import lose_keys, mix_epochs, scan_the_last
from tests.fault.planted_selections import give_what_is_no_more, judge_first_rows, keep_index_entries
from tests.fault.workload import CHAINS, GUESTS, LEDGERS, NOTICES, SPANS, SUMS, TRAILS, VALUES


def drop_markers() -> None:
    """Epochs are written without their markers: whoever restores can't tell which of them it holds."""
    appending = KafkaWriter._appending

    def without(self: KafkaWriter, changed: PartitionChanges) -> PartitionAppend:
        whole = appending(self, changed)
        return whole if changed.marker.stamp.epoch % 10 else whole._replace(records=list(whole.records)[:-1])

    KafkaWriter._appending = without  # type: ignore[method-assign]


def apply_twice() -> None:
    """A replay of sums is not taken for one: what was committed already is merged again."""
    plan_state = commit._plan_state

    def forgetful(plan: Any, epoch: EpochToCommit, state: StateReplica, part: StateToCommit) -> None:
        positions = state._positions
        if state.descriptor.state == SUMS:
            state._positions = {}
        try:
            plan_state(plan, epoch, state, part)
        finally:
            state._positions = positions

    commit._plan_state = forgetful


def show_uncommitted() -> None:
    """Readers are shown what is staged, as if it were committed."""
    add, lookup = StagedAttempt.add, Table.lookup
    staged: dict[bytes, bytes | None] = {}

    def remembering(self: StagedAttempt, keys: Sequence[bytes], rows: Sequence[bytes | None]) -> None:
        add(self, keys, rows)
        if self._name.endswith(f"/{VALUES}"):
            staged.update(zip(keys, rows, strict=True))

    def showing(self: Table, keys: Sequence[bytes], *bounds: Any, **more: Any) -> CopyAnswers:
        answers = lookup(self, keys, *bounds, **more)
        if self.descriptor.state != VALUES:
            return answers
        rows = [staged.get(key, row) for key, row in zip(keys, answers.rows, strict=True)]
        return answers._replace(rows=rows)

    StagedAttempt.add = remembering  # type: ignore[method-assign]
    Table.lookup = showing  # type: ignore[method-assign]


def pass_epochs_over() -> None:
    """Which epoch a reader asks for is passed over: it gets the last one."""
    lookup = Table.lookup

    def last(self: Table, keys: Sequence[bytes], bounds: ReadBounds, *of: Any, **more: Any) -> CopyAnswers:
        return lookup(self, keys, bounds._replace(as_of=0), *of, **more)

    Table.lookup = last  # type: ignore[method-assign, assignment]


def tear_scans() -> None:
    """A scan of a map is made of two epochs: all but the first entry is as it was when first scanned."""
    scan = Table.scan
    before: dict[bytes, bytes | None] = {}

    def entries(read: Iterator[tuple[bytes, bytes | None]]) -> Iterator[tuple[bytes, bytes | None]]:
        for at, (key, row) in enumerate(read):
            first = before.setdefault(key, row)
            yield key, first if at else row

    def torn(self: Table, *arguments: Any, **more: Any) -> Scanned:
        scanned = scan(self, *arguments, **more)
        if self.descriptor.state == SPANS:
            scanned.entries = entries(scanned.entries)
        return scanned

    Table.scan = torn  # type: ignore[method-assign]


def lose_elements() -> None:
    """Whoever takes a key group over lacks the last element of its lists."""
    restore = take_over.restore

    def losing(states: Mapping[str, StateReplica], wanted: Mapping[str, Iterable[int]], *of: Any, **more: Any) -> None:
        new = set(wanted.get(TRAILS, ())) - states[TRAILS].groups.owned if TRAILS in states else set()
        restore(states, wanted, *of, **more)
        for group in new:
            state, codec = states[TRAILS], states[TRAILS].table.codec
            snapshot = state.store.snapshot()
            last = {key[: codec.prefix_length(key)]: key for key, _ in snapshot.items(group)}
            snapshot.close()
            here = Advance(state.position(group), state.position(group))
            if last:
                state.store.apply(Batch(deletes=sorted(last.values()), advances={group: here}))

    take_over.restore = losing  # type: ignore[assignment]


def merge_twice() -> None:
    """A replay merges its rows into the aggregates that hold them already."""
    plan_state = commit._plan_state

    def forgetful(plan: Any, epoch: EpochToCommit, state: StateReplica, part: StateToCommit) -> None:
        positions = state._positions
        if state.descriptor.state == CHAINS:
            state._positions = {}
        try:
            plan_state(plan, epoch, state, part)
        finally:
            state._positions = positions

    commit._plan_state = forgetful
    Aggregate.as_of = lambda self, epoch: Base(self.accumulator, self.version)  # type: ignore[method-assign]


def keep_deleted() -> None:
    """Standbys of a broadcast state pass deletions over."""
    apply_pieces = StateReplica.apply_pieces

    def keeping(self: StateReplica, pieces: Iterable[RestoredEpochs], check: Callable[[], None] = go_on) -> None:
        kept = [
            dataclasses.replace(piece, changes=[change for change in piece.changes if change[1] is not None])
            if piece.partition.state == NOTICES and self.groups.is_followed(piece.partition.key_group)
            else piece
            for piece in pieces
        ]
        apply_pieces(self, kept, check)

    StateReplica.apply_pieces = keeping  # type: ignore[method-assign]


def reduce_cleared() -> None:
    """What an epoch both clears and writes is merged with what it has cleared."""
    merge_entries._Without.get_many = lambda self, storage_keys: self._stored.get_many(storage_keys)  # type: ignore[method-assign]


def count_expired() -> None:
    """What an epoch brings is merged with what has expired."""

    def get_many(self: merge_expiring._Living, storage_keys: Sequence[bytes]) -> list[bytes | None]:
        return [None if row is None else row[STAMP_BYTES:] for row in self._stored.get_many(storage_keys)]

    merge_expiring._Living.get_many = get_many  # type: ignore[method-assign]


def show_expired() -> None:
    """Readers are shown what has expired by the clock since the last commit."""
    show, describe = Visibility.show, Visibility.describe
    of_guests: dict[Visibility, bool] = {}

    def described(self: Visibility, descriptor: StateDescriptor) -> None:
        describe(self, descriptor)
        of_guests[self] = descriptor.state == GUESTS

    def late(self: Visibility) -> Show | None:
        visible = self._visible
        if not of_guests[self] or visible is None:
            return show(self)
        return lambda stamp: visible(Moment(stamp.commit_time_ms, stamp.watermark_ms))

    Visibility.describe = described  # type: ignore[method-assign]
    Visibility.show = late  # type: ignore[method-assign]


def keep_ends() -> None:
    """A value that is replaced ends, by event time, when the one before it would have."""
    with_stored = merge_expiring.Expiring.with_stored

    def keeping(
        self: merge_expiring.Expiring, rows: StoredValues, stored: Stored, context: CommitContext
    ) -> list[EntryChange]:
        written = with_stored(self, rows, stored, context)
        if self._lives.clock is not TtlClock.EVENT_TIME or not isinstance(self._merge, Upsert):
            return written
        before = stored.get_many([key for key, _ in written])
        return [
            (key, row if row is None or old is None else old[:STAMP_BYTES] + row[STAMP_BYTES:])
            for (key, row), old in zip(written, before, strict=True)
        ]

    merge_expiring.Expiring.with_stored = keeping  # type: ignore[method-assign]


def forget_subtasks() -> None:
    """Now and then the tasks of an operator are told that their subtasks hold nothing yet."""
    read_bases = epoch_writer.read_bases

    def forgetful(state: StateReplica, context: Any, keys: Sequence[bytes]) -> list[Base | None]:
        bases = read_bases(state, context, keys)
        return [None] * len(bases) if state.descriptor.state == LEDGERS and context.number % 4 == 0 else bases

    epoch_writer.read_bases = forgetful


def skip_at_resume() -> None:
    """A watch of values that goes on behind a token begins with what comes, and not with what has come since."""
    begin = GivenSoFar.begin

    def skipping(self: GivenSoFar) -> None:
        begin(self)
        if self._asked.place is not None and self._descriptor.state == VALUES:
            positions = self._changes.positions
            self.marks |= {of: WatchMark.at(positions[of]) for of, mark in self.marks.items() if mark.below is None}

    GivenSoFar.begin = skipping  # type: ignore[method-assign]


def repeat_at_resume() -> None:
    """A watch of sums that was left within an epoch gets all of that epoch when it goes on."""
    begin = GivenSoFar.begin

    def repeating(self: GivenSoFar) -> None:
        begin(self)
        if self._descriptor.state == SUMS:
            self.marks = {of: msgspec.structs.replace(mark, skip=0) for of, mark in self.marks.items()}

    GivenSoFar.begin = repeating  # type: ignore[method-assign]


def end_early() -> None:
    """The token of a watch of spans says within an epoch that the epoch is whole."""
    message = GivenSoFar.message

    def early(self: GivenSoFar, *args: Any, **options: Any) -> Any:
        marks = self.marks
        if self._descriptor.state == SPANS:
            self.marks = {of: msgspec.structs.replace(mark, skip=0) for of, mark in marks.items()}
        try:
            return message(self, *args, **options)
        finally:
            self.marks = marks

    GivenSoFar.message = early  # type: ignore[method-assign]


def lay_nothing_over() -> None:
    """Look-ups of the latest of spans say that they have what is staged, and have what is committed."""
    over = OpenGroup.over

    def nothing(
        self: OpenGroup, keys: Sequence[bytes], stored: list[bytes | None], snapshot: Snapshot
    ) -> list[bytes | None]:
        laid = over(self, keys, stored, snapshot)
        return stored if self._of.descriptor.state == SPANS else laid

    OpenGroup.over = nothing  # type: ignore[method-assign]


PLANTS: Mapping[str, Callable[[], None]] = {
    "dropped marker": drop_markers,
    "double apply": apply_twice,
    "uncommitted answer": show_uncommitted,
    "epoch passed over": pass_epochs_over,
    "torn scan": tear_scans,
    "lost element": lose_elements,
    "aggregate merged twice": merge_twice,
    "kept deletion": keep_deleted,
    "reduced clear": reduce_cleared,
    "expired counted": count_expired,
    "expired shown": show_expired,
    "lifetime not renewed": keep_ends,
    "forgotten subtask": forget_subtasks,
    "watch skips": skip_at_resume,
    "watch repeats": repeat_at_resume,
    "mirror of a part": end_early,
    "latest without its rows": lay_nothing_over,
    "whole scan of two epochs": mix_epochs,
    "whole scan loses a key": lose_keys,
    "snapshot scanned at the last": scan_the_last,
    "kept index entry": keep_index_entries,
    "predicate on another row": judge_first_rows,
    "watch of what is no more": give_what_is_no_more,
    "lookup port answers as before": answer_as_before,
}


def plant(names: str) -> None:
    """Changes the state server of this process, by one of PLANTS or several, with commas. Empty: nothing."""
    for name in names.split(",") if names else ():
        PLANTS[name]()
