"""What one metric of the catalogue is: its name, type, labels, unit and bounds. Pure.

`counter`, `gauge` and `histogram` make one; the catalogue has a line for each.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from keyhole.metrics.cardinality import MOST_STATES_OF_ALL
from keyhole.metrics.labels import LABELS


class MetricType(enum.StrEnum):
    """The types of metrics that are used, by Prometheus's names for them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Component(enum.StrEnum):
    """Who says it of itself. The job is its Spark driver."""

    STATE_SERVER = "state_server"
    CLIENT_PROXY = "client_proxy"
    JOB = "job"
    EXPORTER = "exporter"


class Together(enum.StrEnum):
    """What several states, or queries, are put together by."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        component: Who exposes it; the exporter also exposes those of all others.
        together: How those of several states, or queries, become one.
        buckets: Upper bounds, of a histogram; what is above the last one is counted too.
    """

    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...]
    unit: str
    component: Component
    together: Together = Together.SUM
    buckets: tuple[float, ...] = ()

    @property
    def most_series(self) -> int:
        """How many series one process makes of it at most; for the exporter's own: per process that it asks."""
        series = 1
        for label in self.labels:
            if label == "query" and "topic" in self.labels:
                continue  # the topics are counted with their queries
            of_all = label == "state" and self.component is Component.EXPORTER
            series *= MOST_STATES_OF_ALL + 1 if of_all else LABELS[label].bound or 1
        return series * (len(self.buckets) + 3 if self.buckets else 1)


def counter(component: Component, what: str, unit: str, labels: str, help_: str, prefix: str = "") -> Metric:
    """What only grows while the process lives, `keyhole_<component>_<what>_<unit>_total`.

    Args:
        labels: By their names, with blanks between; so for the others.
        prefix: In the component's place in the name.
    """
    name = f"keyhole_{prefix or component}_{what}_{unit}_total"
    return Metric(name, MetricType.COUNTER, help_, tuple(labels.split()), unit, component)


def gauge(
    component: Component,
    what: str,
    unit: str,
    labels: str,
    help_: str,
    together: Together = Together.SUM,
    prefix: str = "",
) -> Metric:
    """What goes up and down. `unit` is empty where it is 0 or 1."""
    name = f"keyhole_{prefix or component}_{what}" + (f"_{unit}" if unit else "")
    return Metric(name, MetricType.GAUGE, help_, tuple(labels.split()), unit, component, together)


def histogram(
    component: Component, what: str, unit: str, labels: str, help_: str, buckets: tuple[float, ...], prefix: str = ""
) -> Metric:
    """How often something took how much, by buckets with these upper bounds."""
    name = f"keyhole_{prefix or component}_{what}_{unit}"
    labelled = tuple(labels.split())
    return Metric(name, MetricType.HISTOGRAM, help_, labelled, unit, component, buckets=buckets)
