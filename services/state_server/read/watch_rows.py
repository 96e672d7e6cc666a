"""The rows that are there as a watch begins: read from a snapshot, in portions."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence

from keyhole.encoding.codec import EntryRange
from keyhole.encoding.envelope import Visible
from keyhole.encoding.storage_key import prefix_of
from keyhole.rpc.watch_requests import Watched, WatchedRange
from keyhole.stores.base import Snapshot
from services.state_server.read.indexed_scans import IndexedScan

StoredOrNot = tuple[bytes, bytes | None]
"""Storage key and what is stored. None: there is no row, and nothing but time has passed."""


def turns(entries: Iterable[StoredOrNot], most: int, most_bytes: int) -> Generator[Sequence[StoredOrNot]]:
    """The entries in portions that are looked at without a break."""
    turn: list[StoredOrNot] = []
    size = 0
    for entry in entries:
        turn.append(entry)
        size += len(entry[1] or b"")
        if len(turn) >= most or size >= most_bytes:
            yield turn
            turn, size = [], 0
    if turn:
        yield turn


def shown_rows(entries: Iterable[StoredOrNot], show: Visible | None) -> list[tuple[bytes, bytes]]:
    """What readers see of them."""
    there = ((key, entry) for key, entry in entries if entry is not None)
    shown = ((key, entry if show is None else show.row(entry)) for key, entry in there)
    return [(key, row) for key, row in shown if row is not None]


def entries_of(
    snapshot: Snapshot, group: int, keys: Watched | None, after: bytes, indexed: IndexedScan | None = None
) -> Generator[StoredOrNot]:
    """The entries of a key group above a storage key, of these keys, ascending.

    Args:
        indexed: What may be left out of all keys, or of a range; None: nothing.
    """
    above = after + b"\0" if after else b""
    if keys is None:
        yield from _between(snapshot, group, above, None, indexed)
        return
    for start, stop in keys.ranges(group):
        begin = max(start, above)
        if stop is None or begin < stop:
            # Of some keys there are fewer entries than an index would find.
            yield from _between(snapshot, group, begin, stop, indexed if isinstance(keys, WatchedRange) else None)


def _between(
    snapshot: Snapshot, group: int, start: bytes, stop: bytes | None, indexed: IndexedScan | None
) -> Iterator[StoredOrNot]:
    if indexed is None:
        return snapshot.items(group, start, stop)
    prefix = prefix_of(group)
    return indexed.entries(snapshot, EntryRange(prefix, start or prefix, stop), descending=False)
