"""Puts the figures of a process together, as families of the catalogue's metrics, with bounded labels."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from keyhole.metrics.catalogue import BY_NAME
from keyhole.metrics.counters import Histogram, Refusals
from keyhole.metrics.labels import REFUSALS
from keyhole.metrics.metric import Component, Metric, Together
from keyhole.rpc.read_admission import ReadAdmission
from keyhole.v1 import stats_pb2 as pb

_STATM = Path("/proc/self/statm")


class Figures:
    """Samples by metric. Those of one metric with the same labels become one, as the catalogue says.

    Raises:
        KeyError: A name that is not in the catalogue.
    """

    def __init__(self) -> None:
        self._samples: dict[str, dict[tuple[str, ...], float]] = {}
        self._histograms: dict[str, dict[tuple[str, ...], Histogram]] = {}

    def add(self, name: str, labels: tuple[str, ...], value: float) -> None:
        """One sample of a counter or a gauge. `labels`: in the order of the catalogue."""
        samples = self._samples.get(name)
        if samples is None:
            BY_NAME[name]  # a name beyond the catalogue must not get lost in silence
            samples = self._samples[name] = {}
        before = samples.get(labels)
        samples[labels] = value if before is None else _together(BY_NAME[name], before, value)

    def observed(self, name: str, labels: tuple[str, ...], histogram: Histogram) -> None:
        """A histogram, as it is now."""
        self.counted(name, labels, histogram.counts, histogram.sum)

    def counted(self, name: str, labels: tuple[str, ...], counts: Sequence[int], sum_: float) -> None:
        """A histogram, as another process has sent it. One that has other buckets than the catalogue is left out."""
        of = self._histograms.setdefault(name, {}).setdefault(labels, Histogram(BY_NAME[name].buckets))
        if len(counts) == len(of.counts):
            of.counts = [a + b for a, b in zip(of.counts, counts, strict=True)]
            of.sum += sum_

    def process(self, component: Component, labels: tuple[str, ...], started: float) -> None:
        """What every process says of itself. `started`: seconds since 1970."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self.add(f"keyhole_{component}_build_info", (*labels, version()), 1)
        self.add(f"keyhole_{component}_start_time_seconds", labels, started)
        self.add(f"keyhole_{component}_cpu_seconds_total", labels, usage.ru_utime + usage.ru_stime)
        self.add(f"keyhole_{component}_resident_memory_bytes", labels, resident_bytes())

    def refusals(self, component: Component, labels: tuple[str, ...], refusals: Refusals) -> None:
        """What a port has refused; also what it has not: the first one is seen only where there was a 0 before."""
        for refusal, count in {**dict.fromkeys(REFUSALS, 0), **refusals.by_refusal}.items():
            self.add(f"keyhole_{component}_refused_calls_total", (*labels, refusal), count)

    def admission(self, component: Component, labels: tuple[str, ...], admission: ReadAdmission) -> None:
        """What became of lookups at the entrance, and how many calls of them are under way."""
        for limit, count in admission.refused.items():
            self.add(f"keyhole_{component}_limited_reads_total", (*labels, limit), count)
        self.add(f"keyhole_{component}_expired_reads_total", labels, admission.expired)
        self.add(f"keyhole_{component}_open_lookup_calls", labels, admission.calls)

    def families(self) -> list[pb.MetricFamily]:
        """All of them, in the order of the catalogue."""
        return [
            _family(metric, self._samples.get(name, {}), self._histograms.get(name, {}))
            for name, metric in BY_NAME.items()
            if name in self._samples or name in self._histograms
        ]


def _together(metric: Metric, before: float, value: float) -> float:
    if metric.together is Together.SUM:
        return before + value
    return max(before, value) if metric.together is Together.MAX else min(before, value)


def _family(
    metric: Metric, samples: Mapping[tuple[str, ...], float], histograms: Mapping[tuple[str, ...], Histogram]
) -> pb.MetricFamily:
    family = pb.MetricFamily(name=metric.name, labels=metric.labels, bounds=metric.buckets)
    for labels, value in samples.items():
        family.samples.append(pb.MetricSample(labels=labels, value=value))
    for labels, histogram in histograms.items():
        family.samples.append(pb.MetricSample(labels=labels, value=histogram.sum, counts=histogram.counts))
    return family


@functools.cache
def version() -> str:
    """Keyhole's version; "unknown" where it is not installed."""
    try:
        return importlib.metadata.version("keyhole-spark")
    except importlib.metadata.PackageNotFoundError:  # sources on a path, not installed
        return "unknown"


def resident_bytes() -> int:
    """What this process has in memory."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux: the highest it ever was, which macOS gives in bytes and others in KiB
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def process_start() -> float:
    """When this process began, about: seconds since 1970."""
    return time.time() - time.process_time() if not _STATM.exists() else _started_by_proc()


def _started_by_proc() -> float:
    ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    up = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - (up - ticks / os.sysconf("SC_CLK_TCK"))
