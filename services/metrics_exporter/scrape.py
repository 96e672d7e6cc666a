"""Puts all answers together: families of the catalogue's metrics, with bounded labels. Pure, but for its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keyhole.metrics.cardinality import MOST_QUERIES_OF_ALL, MOST_STATES_OF_ALL, MOST_TOPICS, OTHER, Kept
from keyhole.metrics.catalogue import BY_NAME
from keyhole.metrics.families import Figures
from keyhole.metrics.metric import Component, Metric
from keyhole.v1 import stats_pb2 as pb
from services.metrics_exporter import cluster
from services.metrics_exporter.cluster import Memory, ServerHoldings
from services.metrics_exporter.ended_jobs import EndedCounts, SourcePlaces, job_process
from services.metrics_exporter.kafka_look import Found, Wanted

_NAMES = {
    Component.STATE_SERVER: "server",
    Component.CLIENT_PROXY: "proxy",
    Component.JOB: "application",
}


@dataclass(frozen=True)
class ScrapedAnswer:
    """What one process said last. `up`: it still answers. `target`: where it was asked."""

    component: Component
    up: bool
    stats: pb.ReadStatsResponse
    target: str = ""


@dataclass(frozen=True)
class ScrapeView:
    """What is exposed, apart from what the exporter says of itself.

    Attributes:
        families: Of all processes, and of the cluster.
        unknown: By component, how many metrics were left out, which the catalogue doesn't have.
        wanted: What Kafka is to be asked for.
    """

    families: Sequence[pb.MetricFamily]
    unknown: dict[Component, int]
    wanted: Wanted


class Views:
    """Makes views. Used by one thread at a time."""

    def __init__(self) -> None:
        self._states = Kept(MOST_STATES_OF_ALL)
        self._queries = Kept(MOST_QUERIES_OF_ALL)
        self._topics = Kept(MOST_TOPICS)
        self._checked = Kept(MOST_TOPICS)
        self._memory = Memory()
        self._ended = EndedCounts()
        self._sources = SourcePlaces()

    def make(self, answers: Sequence[ScrapedAnswer], found: Found, now_ms: int, now_monotonic: float) -> ScrapeView:
        """Makes the view of these answers, and of what Kafka said."""
        figures = Figures()
        held = [
            ServerHoldings(answer.stats.name, copy)
            for answer in answers
            if answer.up and answer.component is Component.STATE_SERVER
            for copy in answer.stats.copies
        ]
        states = self._memory.note(held, now_monotonic)
        self._states.note(states)
        cluster.tell(figures, self._states, states, held, now_ms)
        unknown = dict.fromkeys(_NAMES, 0)
        for answer in answers:
            unknown[answer.component] += self._tell(figures, answer)
        jobs = [answer for answer in answers if answer.component is Component.JOB]
        self._ended.note({job_process(of.target, of.stats): of.stats for of in jobs}, now_monotonic)
        for ended in self._ended.responses():
            self._tell(figures, ScrapedAnswer(Component.JOB, up=False, stats=ended))
        applications = {application for application, _ in states}
        reads = self._sources.note((of.stats for of in jobs), applications, now_monotonic)
        self._kafka(figures, found)
        told_apart = {name: key_groups for name, key_groups in states.items() if self._states.label(name) == name}
        return ScrapeView(figures.families(), unknown, Wanted(told_apart, tuple(reads)))

    def _tell(self, figures: Figures, answer: ScrapedAnswer) -> int:
        """Returns how many metrics were left out."""
        unknown = 0
        for family in answer.stats.families:
            metric = BY_NAME.get(family.name)
            if metric is None or metric.component is not answer.component or tuple(family.labels) != metric.labels:
                unknown += 1
                continue
            kept, place = self._bound(metric)
            if kept is not None:
                kept.note((sample.labels[place], sample.labels[place + 1]) for sample in family.samples)
            for sample in family.samples:
                labels = tuple(sample.labels)
                if kept is not None:
                    name = kept.label((labels[place], labels[place + 1]))
                    labels = (*labels[:place], *name, *labels[place + 2 :])
                    if "field" in metric.labels and OTHER in name:
                        # States that are put together have any number of fields.
                        at = metric.labels.index("field")
                        labels = (*labels[:at], OTHER, *labels[at + 1 :])
                if metric.buckets:
                    figures.counted(metric.name, labels, sample.counts, sample.value)
                else:
                    figures.add(metric.name, labels, sample.value)
        return unknown

    def _bound(self, metric: Metric) -> tuple[Kept | None, int]:
        """What bounds its names, and where the application stands among its labels; the name is behind it."""
        for label, kept in (("state", self._states), ("query", self._queries), ("topic", self._checked)):
            if label in metric.labels:
                return kept, metric.labels.index("application")
        return None, 0

    def _kafka(self, figures: Figures, found: Found) -> None:
        lag = {(f"{application}/{query}", topic): n for (application, query, topic), n in found.source_lag.items()}
        self._topics.note(lag)
        for name, records in lag.items():
            kept_name, topic = self._topics.label(name)
            application, _, query = kept_name.partition("/")
            figures.add("keyhole_kafka_source_lag_records", (application, query or OTHER, topic), records)
        for name, size in found.changelogs.items():
            figures.add("keyhole_kafka_changelog_records", self._states.label(name), size)
