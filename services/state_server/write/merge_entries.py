"""The strategies of states with more than one entry per key, or with more than the row in an entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.envelope import DIGEST_BYTES, Aggregate, Lifetime, decode_aggregate
from keyhole.encoding.key_codec import encode_integer, end_of_prefix
from keyhole.encoding.storage_key import group_of
from keyhole.errors import DuplicateKey
from services.state_server.write.merge_rows import Rank, Ranked, remembered
from services.state_server.write.merging import Change, Epoch, Merge, Plain, Row, Rows, Stored

_POSITION_BYTES = 8


class Entries:
    """A map key beside the key: a row without one, which deletes, clears all entries that the key had before the epoch.

    Args:
        merge: Of the entries themselves.
    """

    def __init__(self, merge: Merge, codec: StateCodec) -> None:
        self._merge = merge
        self._codec = codec
        self.digest = merge.digest

    def staged(self, row: Row, other: Row) -> Row:
        return self._merge.staged(row, other)

    def with_stored(self, rows: Rows, stored: Stored, epoch: Epoch) -> list[Change]:
        cleared = {key for key, row in rows.items() if row is None and self._is_whole_key(key)}
        if not cleared:
            return self._merge.with_stored(rows, stored, epoch)
        gone: Rows = {
            key: None for prefix in cleared for key, _ in stored.items(group_of(prefix), prefix, end_of_prefix(prefix))
        }
        entries = {key: row for key, row in rows.items() if key not in cleared}
        written = self._merge.with_stored(entries, _Without(stored, frozenset(gone)), epoch)
        return sorted((dict(gone) | dict(written)).items())

    def replacing(self, rows: Rows, epoch: Epoch) -> Rows:
        entries = {key: row for key, row in rows.items() if row is not None or not self._is_whole_key(key)}
        return self._merge.replacing(entries, epoch)

    def _is_whole_key(self, key: bytes) -> bool:
        return self._codec.prefix_length(key) == len(key)


class RankedEntries(Ranked):
    """The entries of a map with `order_by`: what clears a key has an order, too, and is remembered as a deletion is.

    It has the key alone for its storage key, and stands for a deletion of all entries that the key can have. Of equal
    order it comes before an entry's row of its own epoch or a later one, and after one of an earlier epoch.
    """

    def __init__(self, rank: Rank, codec: StateCodec) -> None:
        super().__init__(rank)
        self._codec = codec

    def with_stored(self, rows: Rows, stored: Stored, epoch: Epoch) -> list[Change]:
        keys = sorted(rows)
        prefixes = list(self._prefixes(keys))
        clearing = self._clearing(list(dict.fromkeys(prefixes)), stored)
        written: dict[bytes, Row] = {}
        entries: list[tuple[bytes, bytes]] = []
        # What clears a key is the first of it.
        for key, prefix in zip(keys, prefixes, strict=True):
            if key == prefix:
                written |= self._cleared(key, rows[key], clearing, stored)
            else:
                entries.append((key, prefix))
        names = [key for key, _ in entries]
        for (key, prefix), before in zip(entries, stored.get_many(names), strict=True):
            row = rows[key]
            if row is None:
                written[key] = None
                continue
            rank = self.rank(row)
            if (prefix not in clearing or rank >= clearing[prefix]) and (before is None or rank >= self.rank(before)):
                written[key] = remembered(row)
        return sorted(written.items())

    def replacing(self, rows: Rows, epoch: Epoch) -> Rows:
        changed = self.with_stored(rows, _NOTHING, epoch)
        return {key: row for key, row in changed if row is not None}

    def _prefixes(self, keys: Sequence[bytes]) -> Iterator[bytes]:
        """What the storage keys, which are ascending, begin with: key group and key."""
        prefix: bytes | None = None
        for key in keys:
            # No encoded key is the beginning of another one; to find out where each ends would take longer.
            if prefix is None or not key.startswith(prefix):
                prefix = key[: self._codec.prefix_length(key)]
            yield prefix

    def _clearing(self, prefixes: Sequence[bytes], stored: Stored) -> dict[bytes, Any]:
        """By key that was cleared: the rank of that."""
        found = zip(prefixes, stored.get_many(prefixes), strict=True)
        return {prefix: self.rank(row) for prefix, row in found if row is not None}

    def _cleared(self, prefix: bytes, row: Row, clearing: dict[bytes, Any], stored: Stored) -> dict[bytes, Row]:
        """What a row changes that clears a key by order; its rank is put into `clearing`."""
        assert row is not None, "what clears without an order is seen to before"
        rank = self.rank(row)
        if prefix in clearing and rank < clearing[prefix]:
            return {}
        clearing[prefix] = rank
        held = stored.items(group_of(prefix), prefix, end_of_prefix(prefix))
        gone: dict[bytes, Row] = {key: None for key, entry in held if self.rank(entry) <= rank}
        return gone | {prefix: remembered(row)}


class _Nothing:
    """An empty state."""

    def get_many(self, storage_keys: Sequence[bytes]) -> list[bytes | None]:
        return [None] * len(storage_keys)

    def items(
        self, key_group: int, start: bytes = b"", stop: bytes | None = None, *, descending: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return iter(())


_NOTHING = _Nothing()


class _Without:
    """What is stored, as if some of it were not."""

    def __init__(self, stored: Stored, gone: frozenset[bytes]) -> None:
        self._stored = stored
        self._gone = gone

    def get_many(self, storage_keys: Sequence[bytes]) -> list[bytes | None]:
        rows = self._stored.get_many(storage_keys)
        return [None if key in self._gone else row for key, row in zip(storage_keys, rows, strict=True)]

    def items(
        self, key_group: int, start: bytes = b"", stop: bytes | None = None, *, descending: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        found = self._stored.items(key_group, start, stop, descending=descending)
        return ((key, row) for key, row in found if key not in self._gone)


class Appending(Plain):
    """Kind LIST: an epoch's rows come after the stored ones, in the order of the positions that the task gave them.

    These tell rows of one task apart and no more; here they get the positions that they keep. A row without a position
    clears what the key had before the epoch.

    Args:
        max_length: The most elements of a key, the last ones; 0: any number.
    """

    def __init__(self, codec: StateCodec, max_length: int) -> None:
        self._codec = codec
        self._max_length = max_length

    def staged(self, row: Row, other: Row) -> Row:
        if row is None and other is None:
            return None
        raise DuplicateKey("two staged elements of a list have one position: a bug; the task must number them")

    def with_stored(self, rows: Rows, stored: Stored, epoch: Epoch) -> list[Change]:
        written: list[Change] = []
        for prefix, elements, cleared in self._by_key(rows):
            group, end = group_of(prefix), end_of_prefix(prefix)
            if cleared:
                changes = {key: None for key, _ in stored.items(group, prefix, end)}
                written += sorted((changes | self._placed(prefix, elements, 0)).items())
                continue
            last = next(stored.items(group, prefix, end, descending=True), None)
            first = _position(last[0]) + 1 if last else 0
            placed = self._placed(prefix, elements, first)
            oldest = first + len(elements) - self._max_length
            if self._max_length and last:
                too_old = prefix + encode_integer(max(0, oldest), _POSITION_BYTES)
                written += [(key, None) for key, _ in stored.items(group, prefix, too_old)]
            written += placed.items()
        return written

    def replacing(self, rows: Rows, epoch: Epoch) -> Rows:
        return {
            key: row
            for prefix, elements, _ in self._by_key(rows)
            for key, row in self._placed(prefix, elements, 0).items()
        }

    def digest(self, key: bytes, row: Row) -> int:
        # The position depends on the order in which Spark hands out the rows.
        return crc32(key) if row is None else crc32(row, crc32(key[:-_POSITION_BYTES]))

    def _placed(self, prefix: bytes, elements: Sequence[bytes], first: int) -> dict[bytes, Row]:
        kept = elements[-self._max_length :] if self._max_length else elements
        first += len(elements) - len(kept)
        return {
            prefix + encode_integer(position, _POSITION_BYTES): row for position, row in enumerate(kept, start=first)
        }

    def _by_key(self, rows: Rows) -> Iterator[tuple[bytes, list[bytes], bool]]:
        """Per key, ascending: what its storage keys begin with, its new elements, and whether the old ones go."""
        items = sorted(rows.items())
        first = 0
        while first < len(items):
            name = items[first][0]
            prefix = name[: self._codec.prefix_length(name)]
            end = first + 1
            # No encoded key is the beginning of another one; to find out where each ends would take longer.
            while end < len(items) and items[end][0].startswith(prefix):
                end += 1
            yield prefix, [row for _, row in items[first:end] if row is not None], name == prefix
            first = end


def _position(storage_key: bytes) -> int:
    return int.from_bytes(storage_key[-_POSITION_BYTES:], "big") - (1 << 8 * _POSITION_BYTES - 1)


class Aggregating(Plain):
    """Kind AGGREGATING: an epoch has one row per key, which holds what the task has merged with what was stored.

    A staged row is a digest (4 bytes: of what the epoch brought, or nothing where that depends on the order of rows),
    and then an Aggregate without the accumulator before, which is put in here.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def staged(self, row: Row, other: Row) -> Row:
        if row is None and other is None:
            return None
        raise DuplicateKey(
            f"state {self._name} got two rows of one key in one epoch: its rows came from two tasks", state=self._name
        )

    def with_stored(self, rows: Rows, stored: Stored, epoch: Epoch) -> list[Change]:
        keys = sorted(rows)
        return [
            (key, self._entry(rows[key], before, epoch.number))
            for key, before in zip(keys, stored.get_many(keys), strict=True)
        ]

    def _entry(self, staged: Row, before: bytes | None, epoch: int) -> Row:
        if staged is None:
            return None
        entry = decode_aggregate(staged[DIGEST_BYTES:])
        if before is None:
            return Aggregate(epoch, entry.row, entry.accumulator, None, entry.version).encode()
        held = decode_aggregate(before)
        made = Aggregate(epoch, entry.row, entry.accumulator, held.accumulator, entry.version, held.version)
        return made.encode()

    def replacing(self, rows: Rows, epoch: Epoch) -> Rows:
        return {key: self._entry(row, None, epoch.number) for key, row in rows.items()}

    def digest(self, key: bytes, row: Row) -> int:
        return crc32(key) if row is None else crc32(row[:DIGEST_BYTES], crc32(key))


class Expiring:
    """Entries that expire: each carries when, and what has expired counts as absent. So do deletions.

    Args:
        merge: Of the rows without that.
    """

    def __init__(self, merge: Merge, lives: Lifetime) -> None:
        self._merge = merge
        self._lives = lives
        self.digest = merge.digest

    def staged(self, row: Row, other: Row) -> Row:
        return self._merge.staged(row, other)

    def with_stored(self, rows: Rows, stored: Stored, epoch: Epoch) -> list[Change]:
        entry = self._lives.entries(epoch.written)
        written = self._merge.with_stored(rows, _Living(stored, self._lives, epoch), epoch)
        return [(key, None if row is None else entry(row)) for key, row in written]

    def replacing(self, rows: Rows, epoch: Epoch) -> Rows:
        entry = self._lives.entries(epoch.written)
        replaced = self._merge.replacing(rows, epoch)
        return {key: None if row is None else entry(row) for key, row in replaced.items()}


class _Living:
    """What is stored, without what has expired, and without the time at which it does.

    `items` has the expired ones too: whoever clears a key, or looks for the last position in a list, means all of them.
    """

    def __init__(self, stored: Stored, lives: Lifetime, epoch: Epoch) -> None:
        self._stored = stored
        self._lives = lives
        self._lives_from = lives.lives_from(epoch.moment)

    def get_many(self, storage_keys: Sequence[bytes]) -> list[bytes | None]:
        return self._lives.living(self._stored.get_many(storage_keys), self._lives_from)

    def items(
        self, key_group: int, start: bytes = b"", stop: bytes | None = None, *, descending: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        found = self._stored.items(key_group, start, stop, descending=descending)
        return ((key, self._lives.bare(entry)) for key, entry in found)
