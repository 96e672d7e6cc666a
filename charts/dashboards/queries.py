"""PromQL over the catalogue's metrics. Pure.

Each metric is first put together by its own labels: the exporter and a service's own /metrics expose the same figures,
and where Prometheus scrapes both, a sum would count them twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from keyhole.metrics.catalogue import BY_NAME
from keyhole.metrics.metric import Metric, MetricType

_RATE = "$__rate_interval"


class Scope:
    """Queries within what a dashboard's variables choose. `variables`: names of labels, which are the variables' too.

    `by` is a text of labels with spaces between; `where` are PromQL matchers: role='="owner"'.

    Raises:
        KeyError: No such metric.
        ValueError: A label that the metric doesn't have, or a metric of another type than the query is for.
    """

    def __init__(self, *variables: str) -> None:
        self._variables = variables

    def now(self, name: str, by: str = "", how: str = "", **where: str) -> str:
        """A gauge, put together as the catalogue says (sum, max, min), or as `how` says."""
        metric = _of(name, MetricType.GAUGE)
        return _together(metric, how or metric.together, by, self._series(metric, name, where))

    def rate(self, name: str, by: str = "", **where: str) -> str:
        """How much a counter grows in a second."""
        metric = _of(name, MetricType.COUNTER)
        return _together(metric, "sum", by, f"rate({self._series(metric, name, where)}[{_RATE}])")

    def quantile(self, quantile: float, name: str, by: str = "") -> str:
        """Of a histogram, over the last moments."""
        buckets = self.buckets(name, by)
        return f"histogram_quantile({quantile:g}, {buckets})"

    def buckets(self, name: str, by: str = "") -> str:
        """How much each bucket grows in a second."""
        metric = _of(name, MetricType.HISTOGRAM)
        return self._observed(metric, "_bucket", f"{by} le".strip(), ("le",))

    def mean(self, name: str, by: str = "") -> str:
        """What a histogram has observed, on average, over the last moments."""
        metric = _of(name, MetricType.HISTOGRAM)
        return f"{self._observed(metric, '_sum', by)} / {self._observed(metric, '_count', by)}"

    def _observed(self, metric: Metric, suffix: str, by: str, more: tuple[str, ...] = ()) -> str:
        rate = f"rate({self._series(metric, metric.name + suffix, {})}[{_RATE}])"
        return _together(metric, "sum", by, rate, more)

    def _series(self, metric: Metric, name: str, where: dict[str, str]) -> str:
        _check(metric, where)
        chosen = {label: f'=~"${label}"' for label in self._variables if label in metric.labels} | where
        return name + ("{" + ", ".join(f"{label}{of}" for label, of in chosen.items()) + "}" if chosen else "")


def _of(name: str, type_: MetricType) -> Metric:
    metric = BY_NAME[name]
    if metric.type is not type_:
        raise ValueError(f"{name} is a {metric.type}, not a {type_}")
    return metric


def _check(metric: Metric, labels: Iterable[str]) -> None:
    unknown = set(labels) - set(metric.labels)
    if unknown:
        raise ValueError(f"{metric.name} has no label {', '.join(sorted(unknown))}")


def _together(metric: Metric, how: str, by: str, series: str, more: tuple[str, ...] = ()) -> str:
    """`more`: labels that the metric has only in Prometheus."""
    own, wanted = (*metric.labels, *more), by.split()
    _check(metric, set(wanted) - set(more))
    once = f"max by ({', '.join(own)}) ({series})" if own else f"max({series})"
    if set(wanted) == set(own):
        return once
    return f"{how} by ({', '.join(wanted)}) ({once})" if wanted else f"{how}({once})"
