"""What the tests of stores write and read."""

from __future__ import annotations

import random
from collections.abc import Iterator

from keyhole.encoding.storage_key import prefix_of
from keyhole.errors import StoreFull
from keyhole.model.epoch import START, Position
from keyhole.stores.base import Advance, Batch, Store

LAST_KEY_GROUP = 65_535


def key(key_group: int, name: str = "") -> bytes:
    """A storage key of the key group, with `name` behind its prefix."""
    return prefix_of(key_group) + name.encode()


def position(epoch: int) -> Position:
    """The position after an epoch, another one for each."""
    return Position(epoch * 10, epoch, 1, 2**64 - epoch, 1_700_000_000_000 + epoch, 0)


def advances(*key_groups: int, epoch: int = 1) -> dict[int, Advance]:
    """The step of each key group to an epoch, from the one before."""
    before = position(epoch - 1) if epoch > 1 else START
    return {key_group: Advance(before, position(epoch)) for key_group in key_groups}


def contents(store: Store, *key_groups: int) -> dict[bytes, bytes]:
    """All rows of these key groups, by storage key."""
    snapshot = store.snapshot()
    try:
        return {k: row for key_group in key_groups for k, row in snapshot.items(key_group)}
    finally:
        snapshot.close()


def positions(store: Store) -> dict[int, Position]:
    """The position of each key group that the store knows."""
    snapshot = store.snapshot()
    try:
        return dict(snapshot.positions())
    finally:
        snapshot.close()


def incompressible(size_bytes: int) -> Iterator[bytes]:
    """Rows without end that no store can make smaller; the same ones each time."""
    dice = random.Random(1)  # noqa: S311 - not for secrets
    while True:
        yield dice.randbytes(size_bytes)


def puts(key_group: int, count: int, row_bytes: int) -> list[tuple[bytes, bytes]]:
    """That many entries, ascending, with rows of that size."""
    return [(key(key_group, f"{n:06}"), row) for n, row in zip(range(count), incompressible(row_bytes), strict=False)]


def fill(store: Store, key_group: int) -> None:
    """Puts rows one by one until the store refuses, and checks that all those it took are there."""
    last = START
    for epoch, row in enumerate(incompressible(500), start=1):
        batch = Batch([(key(key_group, f"{epoch:06}"), row)], [], {key_group: Advance(last, position(epoch))})
        try:
            store.apply(batch)
        except StoreFull:
            break
        last = position(epoch)
    assert positions(store).get(key_group, START) == last
    assert len(contents(store, key_group)) == last.epoch
