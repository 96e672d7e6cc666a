"""The rows that are there as a watch begins: read from a snapshot, in portions."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

from keyhole.encoding.envelope import Visible
from keyhole.rpc.watch_requests import Watched
from keyhole.stores.base import Snapshot


def turns(
    entries: Iterable[tuple[bytes, bytes]], most: int, most_bytes: int
) -> Generator[Sequence[tuple[bytes, bytes]]]:
    """The entries in portions that are looked at without a break."""
    turn: list[tuple[bytes, bytes]] = []
    size = 0
    for entry in entries:
        turn.append(entry)
        size += len(entry[1])
        if len(turn) >= most or size >= most_bytes:
            yield turn
            turn, size = [], 0
    if turn:
        yield turn


def shown_rows(entries: Iterable[tuple[bytes, bytes]], show: Visible | None) -> list[tuple[bytes, bytes]]:
    """What readers see of them."""
    shown = ((key, entry if show is None else show.row(entry)) for key, entry in entries)
    return [(key, row) for key, row in shown if row is not None]


def entries_of(snapshot: Snapshot, group: int, keys: Watched | None, after: bytes) -> Generator[tuple[bytes, bytes]]:
    """The entries of a key group above a storage key, of these keys, ascending."""
    above = after + b"\0" if after else b""
    if keys is None:
        yield from snapshot.items(group, above)
        return
    for start, stop in keys.ranges(group):
        begin = max(start, above)
        if stop is None or begin < stop:
            yield from snapshot.items(group, begin, stop)
