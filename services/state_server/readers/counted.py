"""What reader processes count, as they tell it and as the server adds it to its own. Event loop's thread only."""

from __future__ import annotations

import resource
from collections.abc import Mapping

from keyhole.metrics.counters import Histogram, ReadCounts
from keyhole.metrics.families import resident_bytes
from keyhole.rpc.read_admission import ReadAdmission
from services.state_server.counts import ServerCounts
from services.state_server.readers.reader_words import CopiesBehind, CountedHistogram, CountedState, ReaderReport
from services.state_server.registry import Registry

_ELSEWHERE = ("", "")


class ReaderCounts:
    """Of one reader process.

    Args:
        reads: By state.

    Attributes:
        counts: What is counted as in a server: histograms, refusals, and reads of states that are not here.
        passed_on: Frames.
    """

    def __init__(self, reads: Mapping[tuple[str, str], ReadCounts]) -> None:
        self._reads = reads
        self.counts = ServerCounts()
        self.passed_on = 0
        self._cpu_seconds = 0.0

    def of(self, application: str, state: str) -> ReadCounts:
        """Where reads of a state are counted."""
        return self._reads.get((application, state), self.counts.elsewhere)

    def taken(self, admission: ReadAdmission, ended: int, behind: tuple[CopiesBehind, ...] = ()) -> ReaderReport:
        """What was counted since this was asked last; all is 0 from now on.

        Args:
            ended, behind: As in the report.
        """
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu_seconds = usage.ru_utime + usage.ru_stime
        counts = self.counts
        report = ReaderReport(
            states=tuple(
                _taken(*name, reads)
                for name, reads in (*self._reads.items(), (_ELSEWHERE, counts.elsewhere))
                if reads.frames or reads.failed
            ),
            lookup_seconds=_taken_histogram(counts.lookup_seconds),
            frame_keys=_taken_histogram(counts.frame_keys),
            passed_on=self.passed_on,
            limited=dict(+admission.refused),
            expired=admission.expired,
            refusals=dict(counts.refusals.by_refusal),
            calls=admission.calls,
            ended=ended,
            behind=behind,
            cpu_seconds=cpu_seconds - self._cpu_seconds,
            resident_bytes=resident_bytes(),
        )
        self.passed_on, self._cpu_seconds, admission.expired = 0, cpu_seconds, 0
        admission.refused.subtract(admission.refused.copy())
        counts.refusals.by_refusal.clear()
        return report


def _taken(application: str, state: str, reads: ReadCounts) -> CountedState:
    taken = CountedState(application, state, reads.keys, reads.frames, dict(reads.failed))
    reads.keys = reads.frames = 0
    reads.failed.clear()
    return taken


def _taken_histogram(of: Histogram) -> CountedHistogram:
    taken = CountedHistogram(of.counts, of.sum)
    of.counts, of.sum = [0] * len(of.counts), 0.0
    return taken


def add_report(report: ReaderReport, registry: Registry, admission: ReadAdmission) -> None:
    """Adds it to what the server has counted itself: a reader that is killed takes nothing of it along."""
    counts = registry.counts
    for of in report.states:
        table = registry.tables.get((of.application, of.state))
        reads = counts.elsewhere if table is None else table.reads
        reads.keys += of.keys
        reads.frames += of.frames
        for reason, failed in of.failed.items():
            reads.failed[reason] += failed
    for own, more in ((counts.lookup_seconds, report.lookup_seconds), (counts.frame_keys, report.frame_keys)):
        own.counts = [before + count for before, count in zip(own.counts, more.counts, strict=True)]
        own.sum += more.sum
    for refusal, count in report.refusals.items():
        counts.refusals.by_refusal[refusal] += count
    admission.refused.update(report.limited)
    admission.expired += report.expired
    counts.passed_on += report.passed_on
    counts.reader_cpu_seconds += report.cpu_seconds
