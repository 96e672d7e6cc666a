"""What is staged and not committed, for readers who ask for the latest: merged for each read as it would be committed.

Event loop only. The rows of a whole attempt don't change any more, so they are read here while the host's thread
commits them. They count for as long as the state's owner is confirmed, and until the epoch is published.
"""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Iterator, Sequence

from keyhole.encoding.codec import StateCodec
from keyhole.errors import MalformedRequest
from keyhole.model.epoch import EpochStamp
from keyhole.model.state import StateDescriptor, StateKind, TtlClock
from keyhole.stores.base import Snapshot
from services.state_server.read.standing import Lease
from services.state_server.read.table import Table
from services.state_server.write.attempts import RoundAttempts, StagedPart
from services.state_server.write.merge import merge_of
from services.state_server.write.merging import CommitContext, Stored, StoredValues

MOST_ELEMENTS = 1_000
"""Of lists, how many rows of a key group are merged for a read. An element's place depends on all that are staged of
its key, and other callers wait meanwhile.
"""


class OpenEpoch:
    """Of one state; see StagedOver.

    Args:
        lease: Of its query: once that has passed, another owner may have committed other rows.
    """

    def __init__(self, table: Table, attempts: RoundAttempts, lease: Lease) -> None:
        self._table = table
        self._attempts = attempts
        self._lease = lease
        self._describe(table.descriptor)

    def _describe(self, descriptor: StateDescriptor) -> None:
        self._descriptor = descriptor
        self._codec = StateCodec(descriptor)
        # One of its own: that of the write path is the host thread's.
        self._merge = merge_of(descriptor)

    def over(
        self,
        prefix: bytes,
        keys: Sequence[bytes],
        stored: list[bytes | None],
        snapshot: Snapshot,
        before: EpochStamp,
    ) -> tuple[EpochStamp | None, list[bytes | None]]:
        """See StagedOver.over. Rows on disk don't count, nor do those of a task that does not say what they do, or when
        they expire, nor more than MOST_ELEMENTS of lists.
        """
        part = self._attempts.part(self._table.descriptor.state, prefix)
        if part is None or part.epoch <= before.epoch or part.attempt.replaces is None or self._lease.expired:
            return None, stored
        staged = part.rows.in_memory()
        if staged is None or (self._descriptor.kind is StateKind.LIST and len(staged) > MOST_ELEMENTS):
            return None, stored
        if self._table.descriptor is not self._descriptor:
            self._describe(self._table.descriptor)
        now_ms = max(self._lease.clock.now_ms(), before.commit_time_ms)
        watermark_ms = part.attempt.watermark_ms
        if watermark_ms is None:
            if self._descriptor.ttl_clock is TtlClock.EVENT_TIME:
                return None, stored
            watermark_ms = before.watermark_ms
        stamp = EpochStamp(part.epoch, before.generation, now_ms, watermark_ms)
        context = CommitContext.of(stamp)
        rows = self._that_matter(part, staged, keys)
        if part.attempt.replaces:
            replaced = self._merge.replacing(rows, context)
            return stamp, [replaced.get(key) for key in keys]
        written = dict(self._merge.with_stored(rows, _Asked(snapshot, keys), context))
        return stamp, [written.get(key, row) for key, row in zip(keys, stored, strict=True)]

    def _that_matter(self, part: StagedPart, staged: StoredValues, keys: Sequence[bytes]) -> StoredValues:
        """The staged rows on which these keys depend: their own, and those that clear or fill the key they are of."""
        if self._descriptor.kind is StateKind.LIST:
            return {key: row for prefix in self._prefixes(keys) for key, row in part.rows.under(staged, prefix).items()}
        names = set(keys)
        if self._descriptor.map_key:
            names |= self._prefixes(keys)
        return {key: staged[key] for key in names if key in staged}

    def _prefixes(self, keys: Sequence[bytes]) -> set[bytes]:
        """What these storage keys begin with: key group and key. Without those that are no key of the state: nothing
        is stored of them, and callers whose keys came along are answered.
        """
        found = set()
        for key in keys:
            with contextlib.suppress(MalformedRequest):
                found.add(key[: self._codec.prefix_length(key)])
        return found


class _Asked:
    """Reads what is stored, as if a key group had no entries but those that are asked for: a key that is cleared may
    have many others. Downwards it has all, which a list needs: its new elements come behind the last one.
    """

    def __init__(self, stored: Stored, keys: Sequence[bytes]) -> None:
        self._stored = stored
        self._keys = sorted(set(keys))

    def get_many(self, storage_keys: Sequence[bytes]) -> list[bytes | None]:
        return self._stored.get_many(storage_keys)

    def items(
        self, key_group: int, start: bytes = b"", stop: bytes | None = None, *, descending: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        if descending:
            return self._stored.items(key_group, start, stop, descending=True)
        end = None if stop is None else bisect.bisect_left(self._keys, stop)
        keys = self._keys[bisect.bisect_left(self._keys, start) : end]
        rows = self._stored.get_many(keys)
        return ((key, row) for key, row in zip(keys, rows, strict=True) if row is not None)
