"""PromQL over the catalogue's metrics. Pure.

Each metric is first put together by its own labels: the exporter and a service's own /metrics expose the same figures,
and where Prometheus scrapes both, a sum would count them twice. Whatever is put together is put together by release:
servers and applications of two releases may have the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from keyhole.metrics.catalogue import BY_NAME
from keyhole.metrics.metric import Metric, MetricType

RELEASE = ("namespace", "keyhole_release")
"""The labels that say which release of the chart a series is of. No process exposes them: they come from the scrape."""

_RATE = "$__rate_interval"


class Scope:
    """Queries within what a dashboard's variables choose. `variables`: names of labels, which are the variables' too.

    The labels of the release are always among them. `by` is a text of further labels with spaces between; `where` are
    PromQL matchers: role='="owner"'.

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

    def count(self, name: str, by: str = "") -> str:
        """What a counter has counted, as it is."""
        metric = _of(name, MetricType.COUNTER)
        return _together(metric, "sum", by, self._series(metric, name, {}))

    def increase(self, name: str, window: str, by: str = "") -> str:
        """How much a counter has grown in a window, as PromQL writes one: 1h."""
        metric = _of(name, MetricType.COUNTER)
        return _together(metric, "sum", by, f"increase({self._series(metric, name, {})}[{window}])")

    def quantile(self, quantile: float, name: str, by: str = "") -> str:
        """Of a histogram, over the last moments."""
        metric = _of(name, MetricType.HISTOGRAM)
        return f"histogram_quantile({quantile:g}, {self._observed(metric, '_bucket', f'{by} le'.strip(), ('le',))})"

    def heat(self, name: str) -> str:
        """How much each bucket of a histogram grows in a second, of all that is chosen: a heat map shows but one."""
        return f"sum by (le) ({self._observed(_of(name, MetricType.HISTOGRAM), '_bucket', 'le', ('le',))})"

    def mean(self, name: str, by: str = "") -> str:
        """What a histogram has observed, on average, over the last moments."""
        metric = _of(name, MetricType.HISTOGRAM)
        return f"{self._observed(metric, '_sum', by)} / {self._observed(metric, '_count', by)}"

    def _observed(self, metric: Metric, suffix: str, by: str, more: tuple[str, ...] = ()) -> str:
        rate = f"rate({self._series(metric, metric.name + suffix, {})}[{_RATE}])"
        return _together(metric, "sum", by, rate, more)

    def _series(self, metric: Metric, name: str, where: Mapping[str, str]) -> str:
        _check(metric, where)
        chosen = (*RELEASE, *(label for label in self._variables if label in metric.labels))
        return name + within(chosen, where)


def together(how: str, expression: str, by: Iterable[str] = ()) -> str:
    """Of each release: by further labels of the expression, or what it comes to as a whole."""
    return f"{how} by ({', '.join((*RELEASE, *by))}) ({expression})"


def within(variables: Iterable[str], where: Mapping[str, str] | None = None) -> str:
    """Matchers of a series: what the dashboard's variables choose, and further ones."""
    chosen = {label: f'=~"${label}"' for label in variables} | dict(where or {})
    return "{" + ", ".join(f"{label}{of}" for label, of in chosen.items()) + "}" if chosen else ""


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
    once = together("max", series, own)
    return once if set(wanted) == set(own) else together(how, once, wanted)
