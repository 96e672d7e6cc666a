"""What is staged and not committed, for readers who ask for the latest: which rows count, and as of when.

Event loop only. The rows of a whole attempt don't change any more, so they are read here while the host's thread
commits them. They count for as long as the state's owner is confirmed, and until the epoch is published.
"""

from __future__ import annotations

from keyhole.model.epoch import EpochStamp
from keyhole.model.state import StateKind, TtlClock
from services.state_server.read.standing import Lease
from services.state_server.read.table import Table
from services.state_server.write.attempts import RoundAttempts
from services.state_server.write.open_group import OpenGroup, StateMerge

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
        self._merge = StateMerge(table.descriptor)

    def of(self, prefix: bytes, before: EpochStamp, most_bytes: int | None = None) -> OpenGroup | None:
        """See StagedOver.of. Rows on disk don't count, nor do those of a task that does not say what they do, or when
        they expire, nor more than MOST_ELEMENTS of lists.
        """
        part = self._attempts.part(self._table.descriptor.state, prefix)
        if part is None or part.epoch <= before.epoch or part.attempt.replaces is None or self._lease.expired:
            return None
        staged = part.rows.in_memory()
        if staged is None or (most_bytes is not None and part.rows.memory_bytes > most_bytes):
            return None
        if self._table.descriptor is not self._merge.descriptor:
            self._merge = StateMerge(self._table.descriptor)
        descriptor = self._merge.descriptor
        if descriptor.kind is StateKind.LIST and len(staged) > MOST_ELEMENTS:
            return None
        now_ms = max(self._lease.clock.now_ms(), before.commit_time_ms)
        watermark_ms = part.attempt.watermark_ms
        if watermark_ms is None:
            if descriptor.ttl_clock is TtlClock.EVENT_TIME:
                return None
            watermark_ms = before.watermark_ms
        stamp = EpochStamp(part.epoch, before.generation, now_ms, watermark_ms)
        return OpenGroup(self._merge, part, staged, stamp)
