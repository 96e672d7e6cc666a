"""Stores in this process's memory: for tests, and for states that are small and quickly restored.

A map per key group, never changed once it is published: a snapshot is a reference. `apply` copies the key groups that
it touches, so its cost grows with their size; states of millions of entries belong into LMDB.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from keyhole.encoding.storage_key import GROUP_BYTES, prefix_of
from keyhole.errors import NotReady, StoreFull, StoreLocked
from keyhole.model.epoch import START, Position
from keyhole.stores import rules
from keyhole.stores.base import Batch, StoreLimits, StoreSize

_NO_ENTRIES: Mapping[bytes, bytes] = {}
# What an entry of 0 bytes takes: two bytes objects and its share of a dict.
_ENTRY_OVERHEAD_BYTES = 2 * sys.getsizeof(b"") + 40


def _taken_bytes(key: bytes, row: bytes) -> int:
    return len(key) + len(row) + _ENTRY_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class _Content:
    """All that a store holds, as of one `apply`. Entries by the key group's prefix, then by storage key."""

    topic_id: str
    entries: Mapping[bytes, Mapping[bytes, bytes]] = field(default_factory=dict)
    positions: Mapping[int, Position] = field(default_factory=dict)
    # By prefix, the keys of key groups whose ranges were asked for: none after the first time, then all in order.
    ordered: dict[bytes, Sequence[bytes]] = field(default_factory=dict)
    bytes: int = 0


def _between(content: _Content, prefix: bytes, first: bytes, end: bytes | None, *, descending: bool) -> Iterator[bytes]:
    """Keys of a key group, in order. To sort all of them is worth while where ranges are asked for again."""
    entries = content.entries.get(prefix, _NO_ENTRIES)
    ordered = content.ordered.get(prefix)
    if ordered is None:
        content.ordered[prefix] = ()
        within = (key for key in entries if first <= key and (end is None or key < end))
        yield from sorted(within, reverse=descending)
        return
    if not ordered:
        ordered = content.ordered[prefix] = sorted(entries)
    start, stop = bisect_left(ordered, first), len(ordered) if end is None else bisect_left(ordered, end)
    for at in range(stop - 1, start - 1, -1) if descending else range(start, stop):
        yield ordered[at]


class MemorySnapshot:
    """A Snapshot: it holds the content of one `apply`, whose dictionaries no writer changes."""

    def __init__(self, store: MemoryStore, content: _Content) -> None:
        self._store = store
        self._content: _Content | None = content

    def get(self, storage_key: bytes) -> bytes | None:
        return self._open().entries.get(storage_key[:GROUP_BYTES], _NO_ENTRIES).get(storage_key)

    def get_many(self, storage_keys: Sequence[bytes]) -> list[bytes | None]:
        entries = self._open().entries
        return [entries.get(key[:GROUP_BYTES], _NO_ENTRIES).get(key) for key in storage_keys]

    def get_first(self, storage_keys: Sequence[bytes], most_bytes: int) -> tuple[list[bytes | None], bool]:
        return rules.first_rows(self.get_many(storage_keys), most_bytes)  # no row is copied

    def items(
        self, key_group: int, start: bytes = b"", stop: bytes | None = None, *, descending: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        content, prefix = self._open(), prefix_of(key_group)
        entries = content.entries.get(prefix, _NO_ENTRIES)
        first, end = rules.bounds(key_group, start, stop)
        for key in _between(content, prefix, first, end, descending=descending):
            self._open()
            yield key, entries[key]

    def positions(self) -> Mapping[int, Position]:
        return dict(self._open().positions)

    def close(self) -> None:
        self._content = None

    def _open(self) -> _Content:
        if self._content is None or self._store.closed:
            raise NotReady("the store, or this view of it, was closed while it was read; ask again")
        return self._content


class MemoryStore:
    """See base.Store. Made by MemoryEngine.

    Attributes:
        limit_bytes: It grows no larger. May be changed.
    """

    def __init__(self, content: _Content, limit_bytes: int) -> None:
        self._content = content
        self.limit_bytes = limit_bytes
        self.closed = False

    @property
    def max_key_bytes(self) -> int:
        return rules.MAX_KEY_BYTES

    @property
    def content(self) -> _Content:
        """What the engine keeps while the store is closed."""
        return self._content

    def snapshot(self) -> MemorySnapshot:
        return MemorySnapshot(self, self._open())

    def apply(self, batch: Batch) -> None:
        rules.check_batch(batch, self.max_key_bytes)
        old = self._open()
        rules.check_advances(batch.advances, lambda key_group: old.positions.get(key_group, START))
        changed = {prefix: dict(old.entries.get(prefix, _NO_ENTRIES)) for prefix in map(prefix_of, batch.advances)}
        taken = old.bytes
        for key in batch.deletes:
            row = changed[key[:GROUP_BYTES]].pop(key, None)
            taken -= _taken_bytes(key, row) if row is not None else 0
        for key, row in batch.puts:
            entries = changed[key[:GROUP_BYTES]]
            before = entries.get(key)
            taken += _taken_bytes(key, row) - (_taken_bytes(key, before) if before is not None else 0)
            entries[key] = row
        if taken > max(self.limit_bytes, old.bytes):
            raise StoreFull(
                f"the store would take {taken} bytes of memory and its limit is {self.limit_bytes}; restart the "
                "server with a higher KEYHOLE_STATE_SERVER_STORE_LIMIT_BYTES (or limit_bytes in "
                "KEYHOLE_STATE_SERVER_STORES), or with more servers. Nothing was changed",
                limit_bytes=self.limit_bytes,
            )
        positions = {key_group: advance.after for key_group, advance in batch.advances.items()}
        # One assignment publishes everything: snapshots are taken on other threads.
        ordered = {prefix: keys for prefix, keys in old.ordered.copy().items() if prefix not in changed}
        entries_now, positions_now = {**old.entries, **changed}, {**old.positions, **positions}
        self._content = _Content(old.topic_id, entries_now, positions_now, ordered, taken)

    def drop_key_group(self, key_group: int) -> None:
        old = self._open()
        entries, positions = dict(old.entries), dict(old.positions)
        dropped = entries.pop(prefix_of(key_group), _NO_ENTRIES)
        positions.pop(key_group, None)
        taken = old.bytes - sum(_taken_bytes(key, row) for key, row in dropped.items())
        self._content = _Content(old.topic_id, entries, positions, bytes=taken)

    def size(self) -> StoreSize:
        content = self._open()
        return StoreSize(sum(map(len, content.entries.values())), content.bytes)

    def close(self) -> None:
        self.closed = True

    def _open(self) -> _Content:
        if self.closed:
            raise NotReady("the store was closed; ask again")
        return self._content


class MemoryEngine:
    """See base.StoreEngine. What a closed store held is kept until the engine is closed, and with it lost."""

    def __init__(self, limit_bytes: int = 1 << 40) -> None:
        self._limit_bytes = limit_bytes
        self._stores: dict[tuple[str, str], MemoryStore] = {}

    def open(self, application: str, state: str, topic_id: str) -> MemoryStore:
        before = self._stores.get((application, state))
        if before is not None and not before.closed:
            raise StoreLocked(f"the store of {application}/{state} is already open in this process; close it first")
        kept = before is not None and before.content.topic_id == topic_id
        content = before.content if before is not None and kept else _Content(topic_id)
        store = MemoryStore(content, self._limit_bytes)
        self._stores[application, state] = store
        return store

    def destroy(self, application: str, state: str) -> None:
        store = self._stores.get((application, state))
        if store is not None and not store.closed:
            raise StoreLocked(f"the store of {application}/{state} is open; close it before it is destroyed")
        self._stores.pop((application, state), None)

    def close(self) -> None:
        for store in self._stores.values():
            store.close()
        self._stores.clear()


def limited_engine(limits: StoreLimits) -> MemoryEngine:
    """The engine by limits, as those of other stores are made. It has no directory."""
    return MemoryEngine(limits.bytes)
