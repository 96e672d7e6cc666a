"""What is kept of jobs' processes that have ended, or were started again: the answers have it no longer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from keyhole.metrics.catalogue import BY_NAME
from keyhole.metrics.families import Figures
from keyhole.metrics.metric import Component, MetricType
from keyhole.v1 import stats_pb2 as pb
from services.metrics_exporter.cluster import REMEMBERED_SECONDS
from services.metrics_exporter.kafka_look import SourceRead

FORGOTTEN_SECONDS = 300.0
"""An application without any process begins to count anew after so long. Old counts that come back after ten minutes
would be new ones to KeyholeEpochFailures, which looks no further back."""

MOST_ENDED = 10
"""So many processes of an application are known apart that ended long ago. Those of earlier ones are one sum. One that
ended lately may come back, and then counts by itself again."""

MOST_LATELY = 500
"""So many are known apart however lately they ended."""


class JobProcess(NamedTuple):
    """Whose answer it is. `target`: where it was asked, as two may have the same start."""

    application: str
    target: str
    started: float


def job_process(target: str, stats: pb.ReadStatsResponse) -> JobProcess:
    """The process that answers so."""
    starts = (of.samples for of in stats.families if of.name == "keyhole_job_start_time_seconds")
    return JobProcess(stats.name, target, next((sample.value for of in starts for sample in of), 0.0))


class _EndedProcess(NamedTuple):
    families: Sequence[pb.MetricFamily]
    ended: float


@dataclass
class _EndedJob:
    """Of one application. `processes`: in the order in which they ended."""

    processes: dict[JobProcess, _EndedProcess] = field(default_factory=dict)
    earlier: Sequence[pb.MetricFamily] = ()
    lived: float = 0.0

    def ends(self, process: JobProcess, families: Sequence[pb.MetricFamily], now_monotonic: float) -> None:
        self.processes[process] = _EndedProcess(families, now_monotonic)
        while len(self.processes) > MOST_ENDED:
            first, of = next(iter(self.processes.items()))
            if now_monotonic - of.ended < FORGOTTEN_SECONDS and len(self.processes) <= MOST_LATELY:
                break
            self.earlier = _sum([*self.earlier, *self.processes.pop(first).families])

    def comes(self, process: JobProcess) -> None:
        """It answers: by itself again, or at another address than the one at which it ended."""
        if self.processes.pop(process, None) is None and process.started:
            same = (of for of in self.processes if of.started == process.started)
            self.processes.pop(next(same, process), None)


class EndedCounts:
    """What ended processes had counted: the sum of an application's processes would go back when one of them ends."""

    def __init__(self) -> None:
        self._last: Mapping[JobProcess, pb.ReadStatsResponse] = {}
        self._ended: dict[str, _EndedJob] = {}

    def note(self, now: Mapping[JobProcess, pb.ReadStatsResponse], now_monotonic: float) -> None:
        """These answer, or have just done so. One that comes back counts by itself again."""
        for process in self._last.keys() - now.keys():
            ended = self._ended.setdefault(process.application, _EndedJob(lived=now_monotonic))
            ended.ends(process, _counted(self._last[process].families), now_monotonic)
        self._ended = {name: of for name, of in self._ended.items() if now_monotonic - of.lived < FORGOTTEN_SECONDS}
        for process in now:
            if (of := self._ended.get(process.application)) is not None:
                of.lived = now_monotonic
                if process not in self._last:
                    of.comes(process)
        self._last = now

    def responses(self) -> list[pb.ReadStatsResponse]:
        """Of applications of which a process still answers."""
        alive = {process.application for process in self._last}
        return [
            pb.ReadStatsResponse(name=name, families=families)
            for name, of in self._ended.items()
            if name in alive
            for families in (*(process.families for process in of.processes.values()), of.earlier)
        ]


def _counted(families: Iterable[pb.MetricFamily]) -> list[pb.MetricFamily]:
    """Those that only grow, of the catalogue's."""
    found = ((family, BY_NAME.get(family.name)) for family in families)
    return [
        family
        for family, metric in found
        if metric is not None
        and metric.component is Component.JOB
        and metric.type is not MetricType.GAUGE
        and metric.labels == tuple(family.labels)
    ]


def _sum(families: Iterable[pb.MetricFamily]) -> list[pb.MetricFamily]:
    figures = Figures()
    for family in families:
        for sample in family.samples:
            if BY_NAME[family.name].buckets:
                figures.counted(family.name, tuple(sample.labels), sample.counts, sample.value)
            else:
                figures.add(family.name, tuple(sample.labels), sample.value)
    return figures.families()


_Place = tuple[str, str, int]


class SourcePlaces:
    """Where queries are in their sources. A process that was started tells it only with its first batch, for which it
    may wait for long where a source is quiet."""

    def __init__(self) -> None:
        self._told: dict[str, dict[_Place, tuple[int, float]]] = {}

    def note(
        self, answers: Iterable[pb.ReadStatsResponse], known: Iterable[str], now_monotonic: float
    ) -> list[SourceRead]:
        """Where the queries are of the applications that these answers are of.

        Args:
            known: Applications that there are, whether one of their processes answers or not.
        """
        now: dict[str, dict[_Place, int]] = {}
        for stats in answers:
            places = now.setdefault(stats.name, {})
            for of in stats.sources:
                place = (of.query, of.topic, of.partition)
                places[place] = max(of.offset, places.get(place, 0))
        for name, places in now.items():
            queries = {query for query, _, _ in places}
            # A query tells all of its sources at once. One that the others go on without may be over.
            seconds = FORGOTTEN_SECONDS if places else REMEMBERED_SECONDS
            kept = {
                place: (offset, at)
                for place, (offset, at) in self._told.get(name, {}).items()
                if place[0] not in queries and now_monotonic - at < seconds
            }
            self._told[name] = kept | {place: (offset, now_monotonic) for place, offset in places.items()}
        there = {*now, *known}
        self._told = {name: told for name, told in self._told.items() if name in there}
        return [
            SourceRead(name, *place, offset, told=place in places)
            for name, places in now.items()
            for place, (offset, _) in self._told[name].items()
        ]
