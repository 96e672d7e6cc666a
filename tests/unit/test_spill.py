"""Staged rows that memory has no room for: on disk and back, what they take, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from keyhole.errors import DuplicateKey, Overloaded, StageLost
from keyhole.model.state import StateDescriptor
from services.state_server.write.merge import merge_of
from services.state_server.write.spill import Spool, StagingRoom
from services.state_server.write.staged import StagedAttempt, winners
from tests.support.states import KEY_GROUPS, descriptor, key, names_in, row

A, A2, _ = map(key, names_in(0))
B = key(names_in(1)[0])


@pytest.fixture
def room(tmp_path: Path) -> StagingRoom:
    return StagingRoom(0, 1 << 20, tmp_path / "below")


@pytest.fixture
def spool(room: StagingRoom) -> Iterator[Spool]:
    made = Spool(room)
    yield made
    made.close()


MakeAttempt = Callable[..., StagedAttempt]


@pytest.fixture
def attempt() -> Iterator[MakeAttempt]:
    made: list[StagedAttempt] = []

    def make(room: StagingRoom, of: StateDescriptor | None = None) -> StagedAttempt:
        made.append(StagedAttempt("app/counts", KEY_GROUPS, 511, merge_of(of or descriptor()), room))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_rows_come_back_as_they_were_written_as_often_as_they_are_read(tmp_path: Path) -> None:
    spool = Spool(StagingRoom(0, 1 << 30, tmp_path))
    small = [(b"%d" % n, b"row" if n % 3 else None) for n in range(1000)]
    large = [(b"large", bytes(3 << 20)), (b"empty", b"")]
    kept, other = spool.keep(small), spool.keep(large)
    assert list(kept) == list(kept) == small
    assert list(other) == large
    assert kept.bytes > sum(len(name) + len(value or b"") for name, value in small)
    spool.close()


def test_a_file_has_no_name_and_gives_its_room_back(spool: Spool, room: StagingRoom, tmp_path: Path) -> None:
    spool.write([(A, row(1.0))])
    assert list((tmp_path / "below").iterdir()) == []
    assert room.disk_bytes > 0
    spool.close()
    spool.close()
    assert room.disk_bytes == 0


def test_what_was_spilled_is_merged_with_what_is_in_memory_and_the_receipt_is_of_all(
    attempt: MakeAttempt, room: StagingRoom
) -> None:
    ranked = descriptor(order_by="n")
    in_memory, spilled = attempt(StagingRoom(1 << 20, 0, Path()), ranked), attempt(room, ranked)
    for staged in (in_memory, spilled):
        for keys, values in (([A, B], [1.0, 1.0]), ([A, A2], [3.0, 1.0]), ([A], [2.0])):
            staged.add(keys, [row(n) for n in values])
            room.make_room([spilled])
    assert spilled.memory_bytes == 0
    assert spilled.receipts() == in_memory.receipts()
    spilled.check()
    groups = winners([spilled], spilled.receipts(), "s")
    assert {k: v for group in groups.values() for k, v in group.merged().items()} == {
        A: row(3.0),
        A2: row(1.0),
        B: row(1.0),
    }


def test_a_key_that_came_again_after_it_was_spilled_is_found_before_the_receipt(
    attempt: MakeAttempt, room: StagingRoom
) -> None:
    staged = attempt(room)
    staged.add([A], [row(1.0)])
    staged.spill()
    staged.add([A], [row(1.0)])
    with pytest.raises(DuplicateKey, match="order_by="):
        staged.check()


def test_the_largest_goes_to_disk_first_and_no_more_than_must(attempt: MakeAttempt, tmp_path: Path) -> None:
    room = StagingRoom(1000, 1 << 20, tmp_path)
    small, large = attempt(room), attempt(room)
    small.add([A], [row(1.0)])
    large.add([A], [bytes(5000)])
    room.make_room([small, large])
    assert (small.memory_bytes > 0, large.memory_bytes) == (True, 0)
    assert room.memory_bytes == small.memory_bytes


def test_an_epoch_of_thirty_times_the_room_never_has_more_than_the_room_in_memory(
    attempt: MakeAttempt, tmp_path: Path
) -> None:
    """Room is made after each chunk, as the servicer does."""
    limit = 1 << 20
    room = StagingRoom(limit, 1 << 30, tmp_path)
    parts = [attempt(room) for _ in range(4)]
    of_a_chunk, row_bytes, most = 50, 3000, 0
    for chunk in range(30 * limit // (of_a_chunk * row_bytes)):
        keys = [key(f"key-{chunk}-{number}") for number in range(of_a_chunk)]
        parts[chunk % len(parts)].add(keys, [os.urandom(row_bytes) for _ in keys])
        room.make_room(parts)
        assert room.memory_bytes == sum(one.memory_bytes for one in parts) <= limit
        most = max(most, room.memory_bytes)
    assert most > limit // 2, "and it is used"


def test_rows_of_another_query_in_memory_are_left_to_it(attempt: MakeAttempt, tmp_path: Path) -> None:
    room = StagingRoom(1000, 1 << 20, tmp_path)
    others, mine = attempt(room), attempt(room)
    others.add([A], [bytes(5000)])
    mine.add([A], [row(1.0)])
    room.make_room([mine])
    assert (others.memory_bytes > 0, mine.memory_bytes) == (True, 0)


def test_more_than_the_disk_may_take_is_refused_and_names_the_setting(attempt: MakeAttempt, tmp_path: Path) -> None:
    room = StagingRoom(0, 100, tmp_path)
    staged = attempt(room)
    staged.add([A], [bytes(200)])
    with pytest.raises(Overloaded, match="KEYHOLE_STATE_SERVER_MAX_SPILLED_BYTES"):
        room.make_room([staged])
    assert staged.memory_bytes > 0
    staged.close()
    assert (room.memory_bytes, room.disk_bytes) == (0, 0)


def test_a_disk_that_can_not_be_written_to_is_refused_by_its_place(
    attempt: MakeAttempt, room: StagingRoom, tmp_path: Path
) -> None:
    (tmp_path / "below").write_text("not a directory")
    staged = attempt(room)
    staged.add([A], [row(1.0)])
    with pytest.raises(Overloaded, match="below"):
        room.make_room([staged])


class FullDisk:
    """A file that takes no more, or gives back less than it took."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes) -> int:
        raise OSError(28, os.strerror(28))

    def read(self, size: int) -> bytes:
        return self._file.read(size)[:-1] if size > 1 else b""


def test_a_full_disk_is_told_and_what_was_written_before_is_unharmed(spool: Spool) -> None:
    before = spool.keep([(A, row(1.0))])
    file = spool._file
    spool._file = FullDisk(file)  # type: ignore[assignment]
    with pytest.raises(Overloaded, match="No space left on device"):
        spool.write([(B, row(1.0))])
    spool._file = file
    assert list(before) == [(A, row(1.0))]


def test_rows_that_the_disk_does_not_give_back_are_lost_not_wrong(spool: Spool) -> None:
    kept = spool.keep([(A, row(1.0))])
    spool._file = FullDisk(spool._file)  # type: ignore[assignment]
    with pytest.raises(StageLost, match="stage them again"):
        list(kept)


def test_a_dropped_attempt_takes_nothing_and_is_not_spilled_any_more(attempt: MakeAttempt, room: StagingRoom) -> None:
    staged = attempt(room)
    staged.add([A], [row(1.0)])
    staged.close()
    staged.spill()
    staged.close()
    assert (room.memory_bytes, room.disk_bytes) == (0, 0)


def test_a_spool_of_changes_is_counted_but_not_limited(tmp_path: Path) -> None:
    room = StagingRoom(0, 20, tmp_path)
    spool = Spool(room)
    changes = spool.for_changes()
    kept = changes.keep([(A, bytes(100))])
    assert list(kept) == [(A, bytes(100))]
    assert room.disk_bytes > 100
    changes.close()
    spool.close()
    assert room.disk_bytes == 0
