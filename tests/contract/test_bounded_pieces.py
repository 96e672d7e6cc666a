"""What is read back is handed out in pieces of bounded size, however much there is and wherever its markers are."""

from __future__ import annotations

from contextlib import closing

from keyhole.changelog.base import Changelog, Partition, Reached, RestoredEpochs
from keyhole.model.epoch import START
from tests.support.changelogs import DEADLINE, changes, commit, grant, read_all, rows

# Many more than the largest piece that any implementation hands out.
SIZE, MOST = 120_000, 52_000
A0 = Partition("a", 0)


def write_a_large_epoch_after_a_small_one(changelog: Changelog) -> dict[bytes, bytes]:
    small = changes(0, 1, {"x": b"1"})
    large = changes(0, 2, {f"{n}": b"%d" % n for n in range(SIZE)})
    with closing(changelog.writer(grant())) as writer:
        writer.open(DEADLINE)
        for epoch in (small, large):
            commit(changelog, writer, [epoch])
    return {name: row for name, row in [*small.changes, *large.changes] if row is not None}


def assert_bounded(pieces: list[RestoredEpochs], written: dict[bytes, bytes]) -> None:
    assert max(piece.records for piece in pieces) <= MOST
    assert rows(pieces) == written
    assert sum(piece.records for piece in pieces) == len(written) + 2
    # What ends within an epoch says so: it has no marker, and its position is still the one of the epoch before.
    for piece in pieces:
        assert piece.position.epoch == (2 if piece is pieces[-1] else 1)
        assert (piece.marker is None) == (piece is not pieces[0] and piece is not pieces[-1])
    offsets = [piece.position.offset for piece in pieces]
    assert offsets == sorted(set(offsets))


def test_a_restore_gets_an_epoch_that_is_too_large_to_be_held_in_pieces_without_a_marker(changelog: Changelog) -> None:
    written = write_a_large_epoch_after_a_small_one(changelog)
    pieces = read_all(changelog)
    assert_bounded(pieces, written)
    # Each of them can be gone on from.
    middle = pieces[len(pieces) // 2].position
    rest = read_all(changelog, {A0: middle})
    assert rows(rest) == rows(pieces[len(pieces) // 2 + 1 :])
    assert rest[-1].position == pieces[-1].position


def test_a_row_that_is_larger_than_what_is_fetched_at_once_is_read_back(changelog: Changelog) -> None:
    row = bytes(range(256)) * (12 << 12)  # 12 MiB
    with closing(changelog.writer(grant())) as writer:
        writer.open(DEADLINE)
        commit(changelog, writer, [changes(0, 1, {"x": b"1", "y": row, "z": b"3"})])
    (piece,) = read_all(changelog)
    assert [len(value or b"") for _, value in piece.changes] == [1, len(row), 1]
    assert piece.bytes > len(row)


def test_a_follower_gets_it_in_pieces_too_and_is_at_the_end_after_the_last(changelog: Changelog) -> None:
    written = write_a_large_epoch_after_a_small_one(changelog)
    items: list[RestoredEpochs | Reached] = []
    with closing(changelog.tail()) as tail:
        tail.follow({A0: START})
        while not items or not isinstance(items[-1], Reached):
            items += tail.poll(1)
    assert_bounded([item for item in items if isinstance(item, RestoredEpochs)], written)
