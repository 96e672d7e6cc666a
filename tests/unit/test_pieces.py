"""Pieces of a changelog on their way to a store: in which parts they come there, and what ends that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from keyhole.changelog.base import Partition, RestoredEpochs
from keyhole.encoding.storage_key import prefix_of
from keyhole.errors import NotReady
from keyhole.model.epoch import START, Position
from keyhole.stores.base import BatchPart, StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine, LmdbStore
from keyhole.stores.packed import PackedChanges
from keyhole.stores.pieces import apply_pieces
from keyhole.testing.stores.samples import contents, positions


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    engine = LmdbEngine(StoreLimits(tmp_path / "stores"))
    yield engine.open("app", "counts", "topic")
    engine.close()


def piece(group: int, number: int, keys: int) -> RestoredEpochs:
    changes = [(prefix_of(group) + b"%d" % key, b"%d" % number) for key in range(keys)]
    return RestoredEpochs(
        Partition("counts", group), PackedChanges(changes), START._replace(offset=number), None, records=keys
    )


def test_of_many_small_key_groups_few_are_unpacked_at_a_time_and_keys_come_in_order(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = 5_000
    pieces = [piece(group, number, 10) for number in (1, 2) for group in reversed(range(groups))]
    sizes, lasts, apply_parts = [], [b""], store.apply_parts

    def seen(parts: Iterable[BatchPart]) -> Iterator[BatchPart]:
        for puts, deletes in parts:
            assert lasts[-1] < puts[0][0]
            sizes.append(len(puts))
            lasts.append(puts[-1][0])
            yield puts, deletes

    monkeypatch.setattr(store, "apply_parts", lambda parts, advances: apply_parts(seen(parts), advances))
    apply_pieces(store, {}, pieces)
    assert sum(sizes) == 10 * groups
    assert max(sizes) < 10 * groups / 8
    assert set(contents(store, *range(groups)).values()) == {b"2"}


def test_what_gives_a_write_up_in_its_middle_leaves_nothing_of_it(store: LmdbStore) -> None:
    pieces = [piece(group, 1, 1000) for group in range(50)]
    asked = 0

    def give_up() -> None:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise NotReady("another assignment is coming")

    held: dict[int, Position] = {}
    with pytest.raises(NotReady):
        apply_pieces(store, held, pieces, give_up)
    assert asked == 3
    assert (held, positions(store), contents(store, *range(50))) == ({}, {}, {})


def test_what_a_piece_takes_beside_its_changes_is_counted() -> None:
    """A thousand key groups' markers, or one change of each, take as much as a large piece."""
    assert PackedChanges([]).packed_bytes > 1_000
    assert PackedChanges(piece(1, 1, 1).changes).packed_bytes > 2_000
