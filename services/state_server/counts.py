"""What a state server counts of itself, apart from what its tables and hosts count of each state."""

from __future__ import annotations

from collections import defaultdict

from keyhole.metrics.catalogue import BY_NAME
from keyhole.metrics.counters import Histogram, ReadCounts, Refusals


class ServerCounts:
    """Written on the event loop alone.

    Attributes:
        elsewhere: Reads of states that it holds nothing of.
        reader_processes: How many processes answer lookups now, this one included.
        reader_calls, reader_resident_bytes: Of the others, now.
        reader_cpu_seconds: Of the others, since the server began.
        passed_on: Frames that the others have passed on to this one.
    """

    def __init__(self) -> None:
        self.lookup_seconds = Histogram(BY_NAME["keyhole_state_server_lookup_seconds"].buckets)
        self.frame_keys = Histogram(BY_NAME["keyhole_state_server_frame_keys"].buckets)
        self.scan_seconds = Histogram(BY_NAME["keyhole_state_server_scan_seconds"].buckets)
        self.commit_seconds = Histogram(BY_NAME["keyhole_state_server_commit_seconds"].buckets)
        self.elsewhere = ReadCounts()
        self.refusals = Refusals()
        self.reader_processes = 1
        self.reader_calls = self.reader_resident_bytes = self.passed_on = 0
        self.reader_cpu_seconds = 0.0

    def looked_up(self, reads: ReadCounts, keys: int, seconds: float) -> None:
        """One frame, or one call, of so many keys; `reads`: those of its state."""
        reads.frames += 1
        reads.keys += keys
        self.frame_keys.observe(keys)
        self.lookup_seconds.observe(seconds)


class EpochCounts:
    """The epochs of one query on this server. Written on the event loop alone.

    Attributes:
        failed: Commits that failed, by reason; also those of updates.
    """

    __slots__ = ("committed", "committed_epoch", "failed", "replayed", "staged_epoch")

    def __init__(self) -> None:
        self.staged_epoch = self.committed_epoch = self.committed = self.replayed = 0
        self.failed: defaultdict[str, int] = defaultdict(int)


class RowCounts:
    """The rows of one state on this server. Written on the event loop alone."""

    __slots__ = ("committed_bytes", "committed_rows", "staged_bytes", "staged_rows")

    def __init__(self) -> None:
        self.staged_rows = self.staged_bytes = self.committed_rows = self.committed_bytes = 0
