"""Rows that are staged and not yet committed: in memory, and on disk where they are too many. One thread at a time."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence

from keyhole.encoding.key_codec import end_of_prefix
from keyhole.encoding.storage_key import GROUP_BYTES, are_storage_keys, group_of
from keyhole.errors import KeyTooLong, MalformedRequest, StageLost
from keyhole.protocol.receipts import GroupReceipt
from services.state_server.write.merging import Merge, StoredValue, StoredValues
from services.state_server.write.spill import Extent, Spool, StagingRoom
from services.state_server.write.ttl_gc import Written

_CHECKSUM_MASK = (1 << 64) - 1

# What a row takes in memory beside its bytes: two objects and its place in a dict (measured).
_ROW_OVERHEAD_BYTES = 190

# So many keys are sorted, or merged, in one go: a few milliseconds.
_RUN_KEYS = 4_096


class StagedGroup:
    """The rows of one key group, and the sums over all that came, of which the receipt is made.

    Attributes:
        rows: Those in memory, merged by key. Rows of the same keys may be on disk.
        spool: Where the others are; None: there are none.
    """

    __slots__ = ("_extents", "_merge", "_ordered", "bytes", "checksum", "count", "rows", "spool")

    def __init__(self, merge: Merge) -> None:
        self.rows: dict[bytes, StoredValue] = {}
        self.count = 0
        self.bytes = 0
        self.checksum = 0
        self._merge = merge
        self.spool: Spool | None = None
        self._extents: list[Extent] = []
        self._ordered: list[bytes] | None = None

    def in_memory(self) -> StoredValues | None:
        """All rows, merged by key; None: some of them are on disk. Of a whole attempt these rows don't change any more.

        Any thread: `spill` says where rows are before it lets go of them.
        """
        rows = self.rows
        return rows if self.spool is None else None

    @property
    def memory_bytes(self) -> int:
        """What the rows in memory take, about, or what they took before some of them were merged. Any thread."""
        return self.bytes + _ROW_OVERHEAD_BYTES * len(self.rows)

    def under(self, rows: StoredValues, prefix: bytes) -> StoredValues:
        """Those of `rows`, which `in_memory` has given, whose keys begin so. Event loop; sorts the keys once."""
        for _ in self.ordering(rows):
            pass
        return {key: rows[key] for key in self.keys_between(prefix, end_of_prefix(prefix))}

    def ordering(self, rows: StoredValues) -> Iterator[None]:
        """Sorts the keys of `rows`, which `in_memory` has given, for `keys_between`; does nothing the second time.

        Stops now and then, for others to have their turn. Event loop.
        """
        if self._ordered is not None:
            return
        names, runs = iter(rows), list[list[bytes]]()
        while run := sorted(itertools.islice(names, _RUN_KEYS)):
            if runs:
                yield
            runs.append(run)
        if len(runs) <= 1:
            self._ordered = runs[0] if runs else []
            return
        merged, ordered = heapq.merge(*runs), list[bytes]()
        while run := list(itertools.islice(merged, _RUN_KEYS)):
            ordered += run
            yield
        self._ordered = ordered

    def keys_between(self, first: bytes, end: bytes | None) -> list[bytes]:
        """The keys that `ordering` has sorted from a first one (inclusive) to a last one (exclusive). Event loop."""
        keys = self._ordered
        assert keys is not None
        return keys[bisect.bisect_left(keys, first) : None if end is None else bisect.bisect_left(keys, end)]

    def spill(self, spool: Spool) -> None:
        """Moves the rows in memory to the end of the spool."""
        if self.rows:
            self.spool = spool
            self._extents += spool.write(self.rows.items())
            self.rows = {}

    def merged(self) -> dict[bytes, StoredValue]:
        """All rows, merged by key. Those on disk are read for it, and stay there.

        Raises:
            DuplicateKey, ValueMismatch: Rows can't be merged.
            StageLost: The disk does not give them back.
        """
        if self.spool is None:
            return self.rows
        rows = dict(self.rows)
        for key, row in self.spool.read(self._extents):
            rows[key] = self._merge.staged(row, rows[key]) if key in rows else row
        return rows


class StagedAttempt:
    """What one task attempt has staged of one partition of one state.

    Args:
        name: application/state, for messages.
        key_groups: Of the state.
        max_key_bytes: The store's limit.
        merge: What becomes of several rows of one key.
        room: None: as much memory as it takes.
        replaces: Its rows are all that their key groups hold from then on, or else are merged with what these hold.
            None: the task does not say, and nobody reads the rows before they are committed.
        watermark_ms: Of the epoch, milliseconds since 1970; 0: none. None: the task does not say.
    """

    def __init__(
        self,
        name: str,
        key_groups: int,
        max_key_bytes: int,
        merge: Merge,
        room: StagingRoom | None = None,
        replaces: bool | None = None,
        watermark_ms: int | None = None,
    ) -> None:
        self.groups: dict[bytes, StagedGroup] = {}
        self.memory_bytes = 0
        self.replaces = replaces
        self.watermark_ms = watermark_ms
        self._name = name
        self._key_groups = key_groups
        self._max_key_bytes = max_key_bytes
        self._merge = merge
        self._room = room
        self._spool: Spool | None = None
        self._closed = False

    def add(self, keys: Sequence[bytes], rows: Sequence[StoredValue]) -> None:
        """Takes rows in; None deletes.

        Raises:
            MalformedRequest: A key that is no storage key of the state.
            KeyTooLong: A key longer than the store takes.
            DuplicateKey, ValueMismatch: A key came twice, and the rows can't be merged. Not seen here, but by `check`,
                where one of them is on disk.
        """
        self._check_keys(keys)
        groups, taken, digest = self.groups, 0, self._merge.digest
        for key, row in zip(keys, rows, strict=True):
            prefix = key[:GROUP_BYTES]
            group = groups.get(prefix)
            if group is None:
                group = groups[prefix] = StagedGroup(self._merge)
            size = len(key) if row is None else len(key) + len(row)
            group.count += 1
            group.bytes += size
            group.checksum += digest(key, row)
            if key in group.rows:
                group.rows[key] = self._merge.staged(row, group.rows[key])
            else:
                group.rows[key] = row
                taken += size + _ROW_OVERHEAD_BYTES
        self._hold(taken)

    def _hold(self, bytes_: int) -> None:
        self.memory_bytes += bytes_
        if self._room is not None:
            self._room.take_memory(bytes_)

    def spill(self) -> None:
        """Moves all rows to disk.

        Raises:
            Overloaded: There is no room. What was not moved is still in memory.
        """
        if self._room is None or self._closed:
            return
        if self._spool is None:
            self._spool = Spool(self._room)
        for group in self.groups.values():
            group.spill(self._spool)
        self._hold(-self.memory_bytes)

    @property
    def spilled(self) -> bool:
        return self._spool is not None

    def check(self) -> None:
        """Merges what is on disk, key group by key group, to find what `add` could not see.

        Raises:
            DuplicateKey, ValueMismatch: Rows of one key can't be merged.
            StageLost: The disk does not give the rows back.
        """
        for group in self.groups.values():
            if group.spool is not None:
                group.merged()

    def close(self) -> None:
        """Drops all rows, in memory and on disk. Idempotent."""
        self._closed = True
        self._hold(-self.memory_bytes)
        if self._spool is not None:
            self._spool.close()

    def _check_keys(self, keys: Sequence[bytes]) -> None:
        if not keys:
            return
        if not are_storage_keys(keys, self._key_groups):
            raise MalformedRequest(f"a staged row of state {self._name} has a key that is no storage key of it")
        longest = max(map(len, keys))
        if longest > self._max_key_bytes:
            raise KeyTooLong(
                f"a key of state {self._name} takes {longest} bytes; the store takes {self._max_key_bytes}. Use a "
                "shorter key, for example a hash of the long column",
                bytes=longest,
                limit=self._max_key_bytes,
            )

    def receipts(self) -> list[GroupReceipt]:
        """The receipt of each key group that has rows, ascending."""
        return [_receipt(prefix, group) for prefix, group in sorted(self.groups.items())]


def _receipt(prefix: bytes, group: StagedGroup) -> GroupReceipt:
    return GroupReceipt(group_of(prefix), group.count, group.bytes, group.checksum & _CHECKSUM_MASK)


def winners(attempts: Iterable[StagedAttempt], expected: Sequence[GroupReceipt], name: str) -> dict[int, StagedGroup]:
    """The staged rows of an epoch by key group, checked against the coordinator's receipts.

    Raises:
        StageLost: This is not exactly what the receipts say.
    """
    groups: dict[int, StagedGroup] = {}
    held = []
    for attempt in attempts:
        for prefix, group in attempt.groups.items():
            held.append(_receipt(prefix, group))
            groups[group_of(prefix)] = group
    if sorted(held, key=_by_group) != sorted(expected, key=_by_group):
        raise StageLost(f"the rows staged here of state {name} are not those to commit; they must be staged again")
    return groups


def amount_of(groups: Collection[StagedGroup]) -> Written:
    """How much is staged in these key groups, about."""
    entries = sum(len(rows.rows) if rows.spool is None else rows.count for rows in groups)
    return Written(entries, sum(rows.bytes for rows in groups))


def _by_group(receipt: GroupReceipt) -> tuple[int, int]:
    return receipt.key_group, receipt.checksum
