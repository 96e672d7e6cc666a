"""What a store holds after which batches, and how it is read."""

from __future__ import annotations

import pytest

from keyhole.errors import InternalError, KeyTooLong, StoreConflict
from keyhole.model.epoch import START, Position
from keyhole.stores.base import Advance, Batch, Store
from keyhole.testing.stores.samples import LAST_KEY_GROUP, advances, contents, key, position, positions, puts

RANGES = pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (key(1, "b"), None, ["b", "c"]),
        (b"", key(1, "b"), ["a"]),
        (key(1, "a"), key(1, "c"), ["a", "b"]),
        (key(1, "aa"), key(1, "bb"), ["b"]),
        (key(1, "c"), key(1, "a"), []),
        (key(0), key(3), ["a", "b", "c"]),
        (key(2), None, []),
        (b"", key(1), []),
        (b"", b"", []),
        (key(1, "b"), key(1).ljust(600, b"b"), ["b"]),
        (key(1).ljust(600, b"b"), None, ["c"]),
    ],
)


class ContentsContract:
    """The part of StoreContract about batches and snapshots."""

    def test_a_new_store_is_empty(self, store: Store) -> None:
        snapshot = store.snapshot()
        assert snapshot.get(key(0, "a")) is None
        assert snapshot.get_many([]) == []
        assert list(snapshot.items(0)) == []
        assert list(snapshot.items(0, descending=True)) == []
        assert snapshot.positions() == {}
        assert store.size().entries == 0

    def test_a_batch_puts_deletes_and_advances_together(self, store: Store) -> None:
        store.apply(Batch([(key(1, "a"), b"1"), (key(1, "b"), b"2"), (key(2, "c"), b"")], [], advances(1, 2)))
        store.apply(Batch([(key(1, "b"), b"20")], [key(1, "a"), key(1, "absent")], advances(1, epoch=2)))

        snapshot = store.snapshot()
        assert snapshot.get(key(1, "b")) == b"20"
        assert snapshot.get_many([key(2, "c"), key(1, "a"), key(1, "b"), key(3, "x"), key(1, "b")]) == [
            b"",
            None,
            b"20",
            None,
            b"20",
        ]
        assert snapshot.positions() == {1: position(2), 2: position(1)}
        assert store.size().entries == 2

    def test_of_many_keys_the_first_are_read_that_fit_and_at_least_one_row(self, store: Store) -> None:
        rows = {key(1, name): name.encode() * 100 for name in "abcde"}
        store.apply(Batch([*rows.items(), (key(2, "large"), bytes(1000)), (key(2, "empty"), b"")], [], advances(1, 2)))
        snapshot, (a, b, c, *_) = store.snapshot(), rows
        absent, large, empty = key(3, "absent"), key(2, "large"), key(2, "empty")
        assert snapshot.get_first([], 100) == ([], False)
        assert snapshot.get_first([a, absent, b, c], 1000) == ([rows[a], None, rows[b], rows[c]], False)
        assert snapshot.get_first([a, absent, b, absent, c], 250) == ([rows[a], None, rows[b], None], False)
        assert snapshot.get_first([absent, large, absent, empty, a], 250) == ([None, bytes(1000), None, b""], True)
        assert snapshot.get_first([a, large, b], 250) == ([rows[a]], False)
        assert snapshot.get_first([empty, large], 250) == ([b"", bytes(1000)], True)
        assert snapshot.get_first([a, b, c], 300) == ([rows[a], rows[b], rows[c]], False)
        many = [key(1, name) for name in "abcde" * 100]
        assert snapshot.get_first(many, 20_000) == ([rows[of] for of in many[:200]], False)
        assert snapshot.get_first(many, 1 << 20) == ([rows[of] for of in many], False)

    def test_a_position_comes_back_field_by_field(self, store: Store) -> None:
        after = Position(2**62, 2**63, 2**40, 2**64 - 1, 1_700_000_000_123, 1_700_000_000_001)
        store.apply(Batch(advances={LAST_KEY_GROUP: Advance(START, after)}))
        assert positions(store) == {LAST_KEY_GROUP: after}

    def test_a_snapshot_stays_as_it_was_while_the_store_goes_on(self, store: Store) -> None:
        store.apply(Batch([(key(1, "a"), b"1"), (key(1, "b"), b"1")], [], advances(1)))
        snapshot = store.snapshot()
        store.apply(Batch([(key(1, "a"), b"2"), (key(1, "c"), b"2")], [key(1, "b")], advances(1, epoch=2)))
        store.drop_key_group(1)

        assert snapshot.get_many([key(1, "a"), key(1, "b"), key(1, "c")]) == [b"1", b"1", None]
        assert list(snapshot.items(1)) == [(key(1, "a"), b"1"), (key(1, "b"), b"1")]
        assert snapshot.positions() == {1: position(1)}
        snapshot.close()

    def test_items_are_ascending_and_only_of_their_key_group(self, store: Store) -> None:
        names = ["b", "a", "", "ab", "z"]
        puts = sorted((key(group, name), b"row") for group in (0, 1, 255, 256, LAST_KEY_GROUP) for name in names)
        store.apply(Batch(puts, [], advances(0, 1, 255, 256, LAST_KEY_GROUP)))

        snapshot = store.snapshot()
        for group in (0, 1, 255, 256, LAST_KEY_GROUP):
            assert [k for k, _ in snapshot.items(group)] == [key(group, name) for name in sorted(names)]
        assert list(snapshot.items(2)) == []

    def test_a_scan_goes_on_with_what_was_there_when_its_snapshot_was_taken(self, store: Store) -> None:
        entries = puts(1, 3000, row_bytes=900)
        store.apply(Batch(entries, [], advances(1)))
        snapshot = store.snapshot()
        up, down = snapshot.items(1), snapshot.items(1, descending=True)
        seen_up, seen_down = [next(up)], [next(down)]

        rest = [key for key, _ in entries[1000:]]
        store.apply(Batch([(key, b"new") for key, _ in entries[:1000]], rest, advances(1, epoch=2)))
        for _ in range(1000):  # in turn: they are two readers of one snapshot
            seen_up.append(next(up))
            seen_down.append(next(down))
        store.drop_key_group(1)

        assert [*seen_up, *up] == entries
        assert [*seen_down, *down] == entries[::-1]
        snapshot.close()

    @RANGES
    def test_items_begin_at_start_end_before_stop_and_never_leave_the_key_group(
        self, store: Store, start: bytes, stop: bytes | None, expected: list[str]
    ) -> None:
        store.apply(Batch([(key(group, name), b"") for group in (0, 1, 2) for name in "abc"], [], advances(0, 1, 2)))
        assert [k for k, _ in store.snapshot().items(1, start, stop)] == [key(1, name) for name in expected]

    @RANGES
    def test_descending_items_are_the_same_ones_in_reverse(
        self, store: Store, start: bytes, stop: bytes | None, expected: list[str]
    ) -> None:
        puts = [(key(group, name), f"{group}{name}".encode()) for group in (0, 1, 2) for name in "abc"]
        store.apply(Batch(puts, [], advances(0, 1, 2)))
        snapshot = store.snapshot()
        assert list(snapshot.items(1, start, stop, descending=True)) == [
            (key(1, name), f"1{name}".encode()) for name in reversed(expected)
        ]

    def test_descending_items_begin_at_the_end_of_the_store_s_first_and_last_key_groups(self, store: Store) -> None:
        store.apply(
            Batch(
                [(key(group, name), b"") for group in (0, LAST_KEY_GROUP) for name in "ab"],
                [],
                advances(0, LAST_KEY_GROUP),
            )
        )
        snapshot = store.snapshot()
        for group in (0, LAST_KEY_GROUP):
            assert [k for k, _ in snapshot.items(group, descending=True)] == [key(group, "b"), key(group, "a")]
        assert list(snapshot.items(1, descending=True)) == []
        assert list(snapshot.items(LAST_KEY_GROUP - 1, descending=True)) == []

    @pytest.mark.parametrize("stored_epoch", [0, 2])
    def test_a_batch_that_does_not_extend_what_is_stored_changes_nothing(self, store: Store, stored_epoch: int) -> None:
        for epoch in range(1, stored_epoch + 1):
            store.apply(Batch([(key(2, "a"), b"old")], [], advances(2, epoch=epoch)))
        before = positions(store)

        wrong = {**advances(1), 2: Advance(position(1), position(3))}
        with pytest.raises(StoreConflict, match=f"key group 2 is at offset {stored_epoch * 10}, epoch {stored_epoch}"):
            store.apply(Batch([(key(1, "a"), b"new"), (key(2, "a"), b"new")], [], wrong))

        assert positions(store) == before
        assert contents(store, 1, 2) == ({key(2, "a"): b"old"} if stored_epoch else {})
        store.apply(Batch([], [], advances(1)))

    def test_every_field_of_a_position_counts_when_a_batch_extends_it(self, store: Store) -> None:
        stored = Position(1, 2, 3, 4, 5, 6)
        store.apply(Batch(advances={0: Advance(START, stored)}))
        for field in Position._fields:
            other = stored._replace(**{field: 9})
            with pytest.raises(StoreConflict):
                store.apply(Batch(advances={0: Advance(other, position(9))}))
        store.apply(Batch(advances={0: Advance(stored, position(9))}))

    def test_the_longest_key_is_taken_and_a_longer_one_is_refused_with_the_limit(self, store: Store) -> None:
        longest = key(1).ljust(store.max_key_bytes, b"k")
        store.apply(Batch([(longest, b"row")], [], advances(1)))

        for batch in (
            Batch([(key(1, "a"), b""), (longest + b"k", b"")], [], advances(1, epoch=2)),
            Batch([(key(1, "a"), b"")], [longest + b"k"], advances(1, epoch=2)),
        ):
            with pytest.raises(KeyTooLong, match=f"{store.max_key_bytes + 1} bytes, and this store takes") as refused:
                store.apply(batch)
            assert "kkk" not in str(refused.value)

        assert contents(store, 1) == {longest: b"row"}
        assert positions(store) == {1: position(1)}
        assert store.snapshot().get_many([longest, longest + b"k"]) == [b"row", None]

    def test_a_batch_that_writes_to_a_key_group_it_does_not_advance_is_refused(self, store: Store) -> None:
        for batch in (Batch([(key(1, "a"), b"")], [], advances(2)), Batch([], [key(1, "a")], advances(2))):
            with pytest.raises(InternalError, match=r"key groups \[1\]"):
                store.apply(batch)
        assert positions(store) == {}

    def test_dropping_a_key_group_removes_its_entries_and_position_and_no_others(self, store: Store) -> None:
        puts = [(key(group, name), b"row") for group in (0, 1, 2, LAST_KEY_GROUP) for name in "abc"]
        store.apply(Batch(puts, [], advances(0, 1, 2, LAST_KEY_GROUP)))

        store.drop_key_group(1)
        store.drop_key_group(LAST_KEY_GROUP)
        store.drop_key_group(7)

        assert set(contents(store, 0, 1, 2, LAST_KEY_GROUP)) == {key(group, name) for group in (0, 2) for name in "abc"}
        assert set(positions(store)) == {0, 2}
        assert store.size().entries == 6
        store.apply(Batch([(key(1, "a"), b"again")], [], advances(1)))
        assert contents(store, 1) == {key(1, "a"): b"again"}
