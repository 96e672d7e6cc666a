"""What each kind of state is, in the simplest words: what the stores, the changelog and the readers are held to.

A model knows neither positions in lists nor what has been removed meanwhile: it is compared by what can be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

import msgspec

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.envelope import DELETED, STAMP_BYTES, UNORDERED_DELETION, Aggregate, Moment, decode_aggregate
from keyhole.encoding.row_codec import encode_row
from keyhole.model.state import StateDescriptor, StateKind, TtlClock

Rows = Mapping[bytes, bytes | None]
"""Staged rows by storage key. Of a list they end with a number that orders them."""

DIGEST = b"dgst"


class Entry(NamedTuple):
    """One entry of a key.

    Attributes:
        name: Its map key, encoded; empty where there is one entry, and in lists.
        row: Or a deletion that is remembered, as it was staged. In a map, one of no name clears the key.
        expires_ms: None: never.
        aggregate: Kind AGGREGATING: epoch, accumulator, the accumulator before the epoch.
    """

    name: bytes
    row: bytes
    expires_ms: int | None = None
    aggregate: tuple[int, bytes, bytes | None] | None = None


State = Mapping[bytes, tuple[Entry, ...]]
"""By key (the beginning of its storage keys), its entries in order; keys without any are missing."""

Shown = Mapping[bytes, tuple[tuple[bytes, bytes], ...]]
"""By key, name and row of each entry that can be read, in order."""


class Model:
    """A state with one field, n, by which reducing states sum and ranked ones rank."""

    def __init__(self, of: StateDescriptor) -> None:
        self._of = of
        self._codec = StateCodec(of)

    def apply(self, before: State, rows: Rows, epoch: int, now: Moment) -> State:
        """The state after an epoch."""
        after = dict(before)
        for key, changes in self._by_key(rows):
            cleared = b"" in changes and changes[b""] is None and bool(self._of.entry_key)
            changes = {name: row for name, row in changes.items() if not (cleared and name == b"")}
            old = () if cleared else after.get(key, ())
            if self._of.keep_deleted_ms:
                after[key] = self._remembering(old, changes, now)
            else:
                after[key] = self._list(old, changes, now) if self._is_list else self._entries(old, changes, epoch, now)
        return {key: entries for key, entries in after.items() if entries}

    @property
    def _is_list(self) -> bool:
        return self._of.kind is StateKind.LIST

    def _list(self, old: tuple[Entry, ...], changes: Rows, now: Moment) -> tuple[Entry, ...]:
        new = [Entry(b"", row, self._expires(now)) for _, row in sorted(changes.items()) if row is not None]
        entries = (*old, *new)
        return entries[-self._of.max_length :] if self._of.max_length and new else entries

    def _entries(self, old: tuple[Entry, ...], changes: Rows, epoch: int, now: Moment) -> tuple[Entry, ...]:
        entries = {entry.name: entry for entry in old}
        for name, row in changes.items():
            before = entries.get(name)
            if before is not None and not self._lives(before, now):
                before = None
            if row is None:
                entries.pop(name, None)
            elif not (self._of.order_by and before and self._number(row) < self._number(before.row)):
                entries[name] = self._entry(name, before, row, epoch, now)
        return tuple(sorted(entries.values()))

    def _remembering(self, old: tuple[Entry, ...], changes: Rows, now: Moment) -> tuple[Entry, ...]:
        """With deletions by order: one after the other, what clears the key before the rest."""
        entries = {entry.name: entry for entry in old}

        def rank(name: bytes) -> float:
            before = entries.get(name)
            return self.rank(before.row) if before is not None and self._lives(before, now) else -2.0

        for name, row in sorted(changes.items()):
            assert row is not None
            if self.rank(row) < max(rank(name), rank(b"")):
                continue
            if self._of.map_key and not name:
                living = [other for other in entries if self._lives(entries[other], now)]
                for other in living:
                    if rank(other) <= self.rank(row):
                        del entries[other]
            if row == UNORDERED_DELETION:
                entries.pop(name, None)
            else:
                entries[name] = Entry(name, row, self._expires(now, row))
        return tuple(sorted(entries.values()))

    def rank(self, row: bytes) -> float:
        """Null below all."""
        deletes = row.startswith(DELETED)
        n = msgspec.msgpack.decode(row[len(DELETED) :]) if deletes else self._codec.decode_row(row)["n"]
        return -1.0 if n is None else float(n)

    def _entry(self, name: bytes, before: Entry | None, row: bytes, epoch: int, now: Moment) -> Entry:
        expires = self._expires(now)
        if self._of.kind is StateKind.AGGREGATING:
            staged = decode_aggregate(row[len(DIGEST) :])
            accumulator = before.aggregate[1] if before is not None and before.aggregate is not None else None
            return Entry(name, staged.row, expires, (epoch, staged.accumulator, accumulator))
        if self._of.kind is StateKind.REDUCING and before is not None:
            row = encode_row(1, [self._number(row) + self._number(before.row)])
        return Entry(name, row, expires)

    def _number(self, row: bytes) -> float:
        return float(self._codec.decode_row(row)["n"])

    def _by_key(self, rows: Rows) -> Iterator[tuple[bytes, dict[bytes, bytes | None]]]:
        split = [(self.split(name), row) for name, row in sorted(rows.items())]
        for key, of in groupby(split, lambda item: item[0][0]):
            yield key, {name: row for (_, name), row in of}

    def split(self, storage_key: bytes) -> tuple[bytes, bytes]:
        """The key, and what names the entry."""
        at = self._codec.prefix_length(storage_key)
        return storage_key[:at], storage_key[at:]

    # --- time -----------------------------------------------------------------------------------------------------

    def _expires(self, now: Moment, row: bytes = b"") -> int | None:
        if row.startswith(DELETED):
            return self._time(now) + self._of.keep_deleted_ms
        return self._time(now) + self._of.ttl_ms if self._of.ttl_ms else None

    def _lives(self, entry: Entry, now: Moment) -> bool:
        return entry.expires_ms is None or entry.expires_ms > self._time(now)

    def _time(self, now: Moment) -> int:
        return now.watermark_ms if self._of.ttl_clock is TtlClock.EVENT_TIME else now.time_ms

    def shown(self, state: State, now: Moment) -> Shown:
        """What readers get."""
        found = {
            key: tuple(
                (entry.name, entry.row)
                for entry in entries
                if self._lives(entry, now) and not entry.row.startswith(DELETED)
            )
            for key, entries in state.items()
        }
        return {key: entries for key, entries in found.items() if entries}

    # --- what is stored -------------------------------------------------------------------------------------------

    def read(self, content: Mapping[bytes, bytes]) -> State:
        """What a store or a changelog holds. Of a list the positions must grow; they are not looked at further."""
        found: dict[bytes, list[Entry]] = {}
        for name, stored in sorted(content.items()):
            key, entry = self.split(name)
            found.setdefault(key, []).append(self._decoded(b"" if self._is_list else entry, stored))
        return {key: tuple(entries) for key, entries in found.items()}

    def _decoded(self, name: bytes, stored: bytes) -> Entry:
        expires = None
        if self._of.ttl_ms:
            expires, stored = int.from_bytes(stored[:STAMP_BYTES], "big"), stored[STAMP_BYTES:]
        elif stored.startswith(DELETED):
            expires, stored = int.from_bytes(stored[1:9], "big"), DELETED + stored[9:]
        if self._of.kind is StateKind.AGGREGATING:
            of = decode_aggregate(stored)
            return Entry(name, of.row, expires, (of.epoch, of.accumulator, of.before))
        return Entry(name, stored, expires)

    def check(self, content: Mapping[bytes, bytes], expected: State, now: Moment) -> None:
        """The content is the state, but of what has expired it may lack any part."""
        held = self.read(content)
        assert self.living(held, now) == self.living(expected, now)
        for key, entries in held.items():
            gone = [entry for entry in entries if not self._lives(entry, now)]
            assert set(gone) <= set(expected.get(key, ()))

    def living(self, state: State, now: Moment) -> State:
        """Without what has expired."""
        found = {key: tuple(entry for entry in entries if self._lives(entry, now)) for key, entries in state.items()}
        return {key: entries for key, entries in found.items() if entries}


def aggregated(row: bytes, accumulator: bytes) -> bytes:
    """What a task stages of a key of an aggregating state."""
    return DIGEST + Aggregate(0, row, accumulator, None).encode()
