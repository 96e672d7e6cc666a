"""What a job counts of its queries. Each query's is written by its own threads; the one that exposes it only reads."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from keyhole.clock import Clock
from keyhole.coordinator.recent_epochs import RecentEpochs
from keyhole.metrics.catalogue import BY_NAME
from keyhole.metrics.counters import Histogram
from keyhole.model.epoch import NO_EPOCH
from keyhole.model.epoch_times import EpochTimes
from keyhole.protocol.epochs import EpochResult
from keyhole.protocol.membership import Membership


class QueryCounts:
    """The epochs of one query, as its coordinator runs them.

    Args:
        recent: Where the last ones are noted; default: of these counts alone.
    """

    def __init__(self, recent: RecentEpochs | None = None) -> None:
        self.recent = recent or RecentEpochs()
        self.complete = NO_EPOCH
        self.epochs = self.replayed = self.rounds = 0
        self.failed: defaultdict[str, int] = defaultdict(int)
        self.seconds = Histogram(BY_NAME["keyhole_job_epoch_seconds"].buckets)
        self.phase_seconds: defaultdict[str, float] = defaultdict(float)
        self.generation = self.assignment_version = self.members = self.distrusted = 0
        self.fenced = False

    @contextmanager
    def phase(self, name: str, clock: Clock) -> Iterator[None]:
        """The block is part of it. `name`: one of metrics.PHASES."""
        began = clock.monotonic()
        try:
            yield
        finally:
            self.phase_seconds[name] += clock.monotonic() - began

    def note_membership(self, generation: int, membership: Membership) -> None:
        """Keeps the membership as the query's run knows it now. One with a later generation than another one that was
        fenced is not.
        """
        if generation > self.generation:
            self.fenced = False
        self.generation = generation
        self.assignment_version = membership.assignment.version
        self.members = len(membership.members)

    def note_epoch(
        self, result: EpochResult, seconds: float, *, batch: int, began_ms: int, before: Mapping[str, float]
    ) -> None:
        """An epoch is complete, which took so long.

        Args:
            batch: Spark's id of its batch.
            began_ms: Milliseconds since 1970.
            before: `phase_seconds` as it began.
        """
        took = {phase: of - before.get(phase, 0.0) for phase, of in self.phase_seconds.items()}
        self.recent.note(
            EpochTimes(
                epoch=result.epoch,
                generation=result.stamp.generation,
                batch=batch,
                began_ms=began_ms,
                seconds=seconds,
                converge=took.get("converge", 0.0),
                stage=took.get("stage", 0.0),
                commit=took.get("commit", 0.0),
                complete=took.get("complete", 0.0),
                rounds=result.rounds,
                replayed=result.replayed,
            )
        )
        self.epochs += 1
        self.replayed += result.replayed
        self.rounds += result.rounds
        self.complete = result.stamp
        self.seconds.observe(seconds)
        self.fenced = False


class SparkCounts:
    """The batches of one query, as Spark reports them.

    Args:
        recent: The query's epochs, which are given what their batches took; default: nobody asks.

    Attributes:
        sources: The next record that is read, by topic and partition.
    """

    def __init__(self, recent: RecentEpochs | None = None) -> None:
        self.recent = recent or RecentEpochs()
        self.batches = 0
        self.batch = -1
        self.seconds = Histogram(BY_NAME["keyhole_spark_batch_seconds"].buckets)
        self.phase_seconds: defaultdict[str, float] = defaultdict(float)
        self.input_rows = 0
        self.input_rows_per_second = self.processed_rows_per_second = 0.0
        self.watermark_ms = 0
        self.state_rows = self.state_memory_bytes = 0
        self.state_updated = self.state_dropped = 0
        self.state_commit_seconds = 0.0
        self.sources: dict[tuple[str, int], int] = {}


class JobCounts:
    """All queries of a job. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, QueryCounts] = {}
        self._spark: dict[str, SparkCounts] = {}
        self._recent: defaultdict[str, RecentEpochs] = defaultdict(RecentEpochs)
        self._checked: dict[str, tuple[int, int]] = {}

    def query(self, name: str) -> QueryCounts:
        """The counts of one query, over all of its runs in this process."""
        with self._lock:
            return self._queries.setdefault(name, QueryCounts(self._recent[name]))

    def spark(self, name: str) -> SparkCounts:
        """The counters of what Spark says of a query, made at the first call. Any thread."""
        with self._lock:
            return self._spark.setdefault(name, SparkCounts(self._recent[name]))

    def check(self, topic: str, records: int, rejected: int) -> None:
        """So many more of a source's topic were looked at, and so many of them can't be taken; 0: there may be some."""
        with self._lock:
            before, rejected_before = self._checked.get(topic, (0, 0))
            self._checked[topic] = before + records, rejected_before + rejected

    def checked(self) -> dict[str, tuple[int, int]]:
        """How many, and how many of them can't be taken: by the source's topic, as it is now."""
        with self._lock:
            return dict(self._checked)

    def all(self) -> tuple[dict[str, QueryCounts], dict[str, SparkCounts]]:
        """The counters of all queries, and of what Spark says of them, by query. Copies; any thread."""
        with self._lock:
            return dict(self._queries), dict(self._spark)
