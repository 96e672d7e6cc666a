"""What a server reads back before it owns key groups."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from keyhole.changelog.base import Partition, RestoredEpochs
from keyhole.errors import KafkaUnreachable, NotReady, StoreFull
from keyhole.model.epoch import START, Position
from keyhole.protocol.failpoints import NoObserver
from keyhole.stores import packed
from keyhole.stores.base import Advance, Batch, BatchPart, StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.packed import KeyChange, PackedChanges
from keyhole.testing.changelog import PIECE_RECORDS, MemoryChangelog, MemoryKafka, MemoryReader
from keyhole.testing.clock import ManualClock
from services.state_server.replica.hosted import StateReplica
from services.state_server.replica.restore import AtOnce, restore
from services.state_server.write.commit import commit_epoch
from tests.support.states import (
    KEY_GROUPS,
    content,
    descriptor,
    encoded,
    epoch,
    hosted,
    key,
    memory_changelog,
    names_in,
    open_writer,
    row,
)

A, A2, A3 = names_in(0)
B = names_in(1)[0]
TOPIC = descriptor().topic
AWAY_LIMIT_MS = 10_000


class Bench:
    """A changelog with an owner that wrote it, and one that is to take over. Epoch n was committed at n seconds."""

    def __init__(self) -> None:
        self.kafka: MemoryKafka
        self.changelog: MemoryChangelog
        self.kafka, self.changelog = memory_changelog()
        self.old = hosted()
        self.new = hosted(restored=())
        self.clock = ManualClock(now_ms=5000)
        self.stop = threading.Event()
        self.at_once = AtOnce()
        self._writer = open_writer(self.changelog)

    def write(self, number: int, rows: dict[str, float | None], generation: int = 1) -> None:
        part = epoch(number, rows, generation=generation)
        commit_epoch(part, {"counts": self.old}, self._writer, NoObserver(), 1.0)

    def restore(self, groups: Iterable[int] = range(KEY_GROUPS), state: StateReplica | None = None) -> None:
        restore(
            {"counts": state or self.new},
            {"counts": groups},
            self.changelog,
            self.clock,
            away_limit_ms=AWAY_LIMIT_MS,
            deadline_seconds=5.0,
            stop=self.stop,
            at_once=self.at_once,
        )

    def put_behind_the_changelogs_back(self, name: str, before: Position, after: Position) -> None:
        """A row that only the new owner's store has: it is gone once the key group was rebuilt."""
        batch = Batch(puts=[(key(name), row(99.0))], advances={0: Advance(before, after)})
        self.new.store.apply(batch)
        self.new.read_positions()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_an_empty_store_gets_all_that_was_committed(bench: Bench) -> None:
    bench.write(1, {A: 1.0, A2: 1.0, B: 1.0})
    bench.write(2, {A: 2.0, A2: None})
    bench.restore()
    assert content(bench.new.store) == encoded({A: 2.0, B: 1.0})
    assert bench.new.groups.owned == set(range(KEY_GROUPS))


def test_positions_are_those_of_the_owner_that_wrote(bench: Bench) -> None:
    bench.write(1, {A: 1.0, B: 1.0})
    bench.write(2, {A: 2.0}, generation=2)
    bench.restore()
    held = dict(bench.new.store.snapshot().positions())
    assert held.keys() == {0, 1}
    for group in range(KEY_GROUPS):
        assert held.get(group, START) == bench.new.position(group) == bench.old.position(group)


def test_what_was_restored_can_be_written_on(bench: Bench) -> None:
    bench.write(1, {A: 1.0})
    bench.restore()
    writer = open_writer(bench.changelog, "grant-2")
    commit_epoch(epoch(2, {A: 2.0}), {"counts": bench.new}, writer, NoObserver(), 1.0)
    assert content(bench.new.store) == encoded({A: 2.0})


def test_a_store_that_was_away_reads_only_what_it_lacks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.write(1, {A: 1.0, A2: 1.0, B: 1.0})
    bench.restore()
    bench.write(2, {A: 2.0, A2: None})
    pieces: list[Batch] = []
    apply = bench.new.store.apply

    def record(batch: Batch) -> None:
        pieces.append(batch)
        apply(batch)

    bench.new.groups.lose_grant()
    monkeypatch.setattr(bench.new.store, "apply", record)
    bench.restore()
    assert content(bench.new.store) == encoded({A: 2.0, B: 1.0})
    assert len(pieces) == 1


def test_key_groups_that_are_there_already_are_not_read_again(bench: Bench) -> None:
    bench.restore()
    bench.kafka.down = True
    bench.restore()


def test_only_the_wanted_key_groups_are_taken(bench: Bench) -> None:
    bench.write(1, {A: 1.0, B: 1.0})
    bench.restore(groups=[1])
    assert content(bench.new.store) == encoded({B: 1.0})
    assert bench.new.groups.owned == {1}


def test_a_compacted_changelog_gives_the_same(bench: Bench) -> None:
    for number in range(1, 6):
        bench.write(number, {A: float(number), A2: None if number % 2 else 1.0, B: 1.0 if number == 1 else 2.0})
    bench.kafka.compact(TOPIC)
    bench.restore()
    assert content(bench.new.store) == content(bench.old.store)


@pytest.mark.parametrize("of", ["records", "bytes"])
def test_however_much_there_is_to_restore_no_more_is_held_than_one_write_and_one_piece(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    names = names_in(0, 200)
    for number in range(1, 12 * PIECE_RECORDS // len(names)):
        bench.write(number, dict.fromkeys(names, float(number)))
    part, end = Partition("counts", 0), bench.kafka.end(TOPIC, 0)
    sizes = [getattr(piece, of) for piece in bench.changelog.reader().read({part: START}, {part: end}, 1.0)]
    limit = sum(sizes) // 4
    read, apply = MemoryReader.read, bench.new.store.apply
    held, most_held = 0, []

    def hold(*args: Any) -> Iterator[RestoredEpochs]:
        nonlocal held
        for piece in read(*args):
            held += getattr(piece, of)
            yield piece

    def write(batch: Batch) -> None:
        nonlocal held
        most_held.append(held)
        held = 0
        apply(batch)

    monkeypatch.setattr(MemoryReader, "read", hold)
    monkeypatch.setattr(bench.new.store, "apply", write)
    bench.at_once = AtOnce(**{of: limit})
    bench.restore()
    assert sum(most_held) == sum(sizes)
    assert max(most_held) < limit + max(sizes) < sum(sizes) / 2
    assert content(bench.new.store) == content(bench.old.store)


def test_a_store_that_takes_parts_is_given_larger_writes_and_these_are_bounded_as_they_are_packed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = names_in(0, 200)
    for number in range(1, 12 * PIECE_RECORDS // len(names)):
        bench.write(number, {**dict.fromkeys(names, float(number)), names[number]: None})
    part, end = Partition("counts", 0), bench.kafka.end(TOPIC, 0)
    pieces = bench.changelog.reader().read({part: START}, {part: end}, 1.0)
    sizes = [PackedChanges(piece.changes).packed_bytes for piece in pieces]
    limit = sum(sizes) // 4
    engine = LmdbEngine(StoreLimits(tmp_path / "stores"))
    store = engine.open("app", "counts", "topic")
    bench.new = hosted(restored=(), store=store)
    bench.at_once = AtOnce(records=1, bytes=1, part_bytes=limit)
    take, apply_parts = PackedChanges.__init__, store.apply_parts
    held, most_held = 0, []

    def hold(self: PackedChanges, changes: Sequence[KeyChange]) -> None:
        nonlocal held
        take(self, changes)
        held += self.packed_bytes

    def write(parts: Iterable[BatchPart], advances: Mapping[int, Advance]) -> None:
        nonlocal held
        most_held.append(held)
        held = 0
        apply_parts(parts, advances)

    monkeypatch.setattr(PackedChanges, "__init__", hold)
    monkeypatch.setattr(store, "apply_parts", write)
    bench.restore()
    assert sum(most_held) == sum(sizes)
    assert limit <= most_held[0]
    assert max(most_held) < limit + max(sizes) < sum(sizes) / 2
    assert content(store) == content(bench.old.store)
    engine.close()


def test_one_that_is_given_up_stops_in_the_middle_of_a_write_and_the_next_one_ends_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = names_in(0, 900)
    bench.write(1, dict.fromkeys(names, 1.0))
    engine = LmdbEngine(StoreLimits(tmp_path / "stores"))
    store = engine.open("app", "counts", "topic")
    bench.new = hosted(restored=(), store=store)
    monkeypatch.setattr(packed, "_MERGED_BLOCKS", 1)
    apply_parts, taken = store.apply_parts, 0

    def write(parts: Iterable[BatchPart], advances: Mapping[int, Advance]) -> None:
        def until_stopped() -> Iterator[BatchPart]:
            nonlocal taken
            for part in parts:
                taken += 1
                bench.stop.set()
                yield part

        apply_parts(until_stopped(), advances)

    with monkeypatch.context() as patch:
        patch.setattr(store, "apply_parts", write)
        with pytest.raises(NotReady, match="given up"):
            bench.restore()
    assert taken == 1
    assert content(store) == {}
    assert bench.new.position(0) == START
    bench.stop.clear()
    bench.restore()
    assert content(store) == content(bench.old.store)
    engine.close()


def test_markers_alone_become_a_write_in_time(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pieces = [
        RestoredEpochs(Partition("counts", 0), [], START._replace(offset=n), None, records=50) for n in (1, 2, 3, 4)
    ]
    monkeypatch.setattr(MemoryReader, "ends", lambda *_: {Partition("counts", 0): 4})
    monkeypatch.setattr(MemoryReader, "read", lambda *_: iter(pieces))
    engine = LmdbEngine(StoreLimits(tmp_path / "stores"))
    store = engine.open("app", "counts", "topic")
    bench.new = hosted(restored=(), store=store)
    apply_parts, offsets = store.apply_parts, []

    def write(parts: Iterable[BatchPart], advances: Mapping[int, Advance]) -> None:
        offsets.append(advances[0].after.offset)
        apply_parts(parts, advances)

    monkeypatch.setattr(store, "apply_parts", write)
    bench.at_once = AtOnce(part_records=100)
    bench.restore()
    assert offsets == [2, 4]
    engine.close()


@pytest.mark.parametrize(
    ("read", "written"),
    [
        ([0, 0, 1, 1, 2, 2], [{0, 1, 2}]),
        ([0, 0, 0, 0, 0, 1, 1, 1], [{0}, {1}]),
        # The next one is begun before one is at its end.
        ([0, 0, 0, 0, 0, 1, 0, 1, 1, 2, 2, 2, 3, 2, 3], [{0}, {1, 2}, {3}]),
        ([0] * 5 + [1] + [0] * 7, [{0}, {0, 1}]),
        ([0] * 5 + [1, 0], [{0}, {1}]),
    ],
)
def test_a_write_ends_where_a_key_group_ends_if_it_can(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, read: list[int], written: list[set[int]]
) -> None:
    pieces = [
        RestoredEpochs(
            Partition("counts", group),
            [(key(names_in(group)[0]), row(float(number)))],
            START._replace(offset=number),
            None,
            records=100,
        )
        for number, group in enumerate(read, 1)
    ]
    ends = {piece.partition: piece.position.offset for piece in pieces}
    monkeypatch.setattr(MemoryReader, "ends", lambda *_: ends)
    monkeypatch.setattr(MemoryReader, "read", lambda *_: iter(pieces))
    apply, groups = bench.new.store.apply, []

    def write(batch: Batch) -> None:
        groups.append(set(batch.advances))
        apply(batch)

    monkeypatch.setattr(bench.new.store, "apply", write)
    bench.at_once = AtOnce(records=1000)
    bench.restore()
    assert groups == written
    assert content(bench.new.store) == encoded(
        {names_in(group)[0]: float(at) for group, at in ((part.key_group, at) for part, at in ends.items())}
    )


class TestRebuilt:
    """Stores that can't be trusted begin at the changelog's start."""

    def test_one_that_is_ahead_of_the_changelog(self, bench: Bench) -> None:
        bench.write(1, {A: 1.0})
        bench.put_behind_the_changelogs_back(A3, START, Position(1000, 9, 1, 0, 9000))
        bench.restore()
        assert content(bench.new.store) == encoded({A: 1.0})
        assert bench.new.position(0).epoch == 1

    @pytest.mark.parametrize(("away_ms", "rebuilt"), [(AWAY_LIMIT_MS - 1, False), (AWAY_LIMIT_MS + 1, True)])
    def test_one_that_was_away_longer_than_deletions_are_kept(self, bench: Bench, away_ms: int, rebuilt: bool) -> None:
        bench.write(1, {A: 1.0})
        bench.restore()
        bench.put_behind_the_changelogs_back(A3, bench.new.position(0), bench.new.position(0))
        bench.write(2, {A: 2.0})
        bench.new.groups.lose_grant()
        bench.clock = ManualClock(now_ms=1000 + away_ms)
        bench.restore()
        expected = encoded({A: 2.0}) if rebuilt else encoded({A: 2.0, A3: 99.0})
        assert content(bench.new.store) == expected

    def test_not_one_that_lacks_nothing_however_old(self, bench: Bench) -> None:
        bench.write(1, {A: 1.0})
        bench.restore()
        bench.put_behind_the_changelogs_back(A3, bench.new.position(0), bench.new.position(0))
        bench.new.groups.lose_grant()
        bench.clock = ManualClock(now_ms=10**12)
        bench.restore()
        assert content(bench.new.store) == encoded({A: 1.0, A3: 99.0})

    def test_the_owner_itself_is_not_rebuilt_for_the_end_of_its_own_transaction(self, bench: Bench) -> None:
        bench.write(1, {A: 1.0})
        before = bench.old.position(0)
        bench.old.groups.lose_grant()
        bench.clock = ManualClock(now_ms=10**12)
        bench.restore(state=bench.old)
        assert bench.old.position(0).epoch == before.epoch == 1
        assert content(bench.old.store) == encoded({A: 1.0})


class TestProgress:
    """What a reader is told meanwhile."""

    def test_it_begins_at_nothing_and_ends_at_all(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.write(1, {A: 1.0, B: 1.0})
        progress, seen = bench.new.table.progress, []
        apply = bench.new.store.apply

        def look(batch: Batch) -> None:
            seen.append((progress.restored, progress.total))
            apply(batch)

        monkeypatch.setattr(bench.new.store, "apply", look)
        bench.restore()
        total = sum(bench.kafka.end(TOPIC, group) for group in range(KEY_GROUPS))
        assert seen[0] == (0, total)
        assert [done for done, _ in seen] == sorted({done for done, _ in seen})
        assert (progress.restored, progress.total) == (total, total)


class TestBrokenOff:
    """A restore that did not come to its end gives no key group away."""

    def test_when_it_is_told_to_stop(self, bench: Bench) -> None:
        bench.write(1, {A: 1.0})
        bench.stop.set()
        with pytest.raises(NotReady, match="given up"):
            bench.restore()
        assert bench.new.groups.owned == set()
        bench.stop.clear()
        bench.restore()
        assert content(bench.new.store) == encoded({A: 1.0})

    def test_what_it_had_is_not_read_again(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(1, PIECE_RECORDS + 2):
            bench.write(number, {A: float(number)})
        apply, full = bench.new.store.apply, iter([False, True])

        def full_at_the_second(batch: Batch) -> None:
            if next(full):
                raise StoreFull("full")
            apply(batch)

        with monkeypatch.context() as patch:
            bench.at_once = AtOnce(PIECE_RECORDS)
            patch.setattr(bench.new.store, "apply", full_at_the_second)
            with pytest.raises(StoreFull):
                bench.restore()
        assert bench.new.groups.owned == set()
        first = bench.new.position(0)
        assert 0 < first.offset < bench.kafka.end(TOPIC, 0)
        bench.restore()
        assert bench.new.table.progress.total == bench.kafka.end(TOPIC, 0) - first.offset
        assert content(bench.new.store) == encoded({A: float(PIECE_RECORDS + 1)})

    def test_when_kafka_goes_away(self, bench: Bench) -> None:
        bench.write(1, {A: 1.0})
        bench.kafka.down = True
        with pytest.raises(KafkaUnreachable):
            bench.restore()
        assert bench.new.groups.owned == set()

    def test_the_reader_is_closed_whatever_happens(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        closed: list[bool] = []
        monkeypatch.setattr(MemoryReader, "close", lambda self: closed.append(True))
        bench.write(1, {A: 1.0})
        bench.restore(groups=[1])
        bench.stop.set()
        with pytest.raises(NotReady):
            bench.restore()
        assert closed == [True, True]


def test_a_piece_tells_the_watermark_of_its_last_marker(bench: Bench) -> None:
    bench.write(1, {A: 1.0})
    bench.write(2, {A: 2.0})
    bench.restore()
    assert bench.new.position(0)[4:] == (2000, 1000)
