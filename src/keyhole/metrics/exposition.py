"""Families of metrics as text for Prometheus. The home of prometheus-client, with the services' own /metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric as Exposed
from prometheus_client.registry import Collector, CollectorRegistry

from keyhole.metrics.catalogue import BY_NAME
from keyhole.metrics.metric import Metric, MetricType
from keyhole.v1 import stats_pb2 as pb

CONTENT_TYPE = CONTENT_TYPE_LATEST


def text(families: Iterable[pb.MetricFamily]) -> bytes:
    """What Prometheus reads. Families that the catalogue doesn't know are left out; any thread.

    Several of the same name become one: nobody may give two samples of it the same labels.
    """
    by_name: dict[str, list[pb.MetricFamily]] = {}
    for family in families:
        by_name.setdefault(family.name, []).append(family)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given([_exposed(BY_NAME[name], of) for name, of in by_name.items() if name in BY_NAME]))
    return generate_latest(registry)


class _Given(Collector):
    def __init__(self, exposed: list[Exposed]) -> None:
        self._exposed = exposed

    def collect(self) -> Iterator[Exposed]:
        yield from self._exposed


def _exposed(metric: Metric, families: list[pb.MetricFamily]) -> Exposed:
    # The client puts `_total` behind a counter's name itself.
    name = metric.name.removesuffix("_total") if metric.type is MetricType.COUNTER else metric.name
    exposed = Exposed(name, metric.help, metric.type.value)
    for family in families:
        for sample in family.samples:
            labels = dict(zip(family.labels, sample.labels, strict=False))
            if metric.type is MetricType.HISTOGRAM:
                _add_histogram(exposed, name, labels, family, sample)
            else:
                exposed.add_sample(metric.name, labels, sample.value)
    return exposed


def _add_histogram(
    exposed: Exposed, name: str, labels: dict[str, str], family: pb.MetricFamily, sample: pb.MetricSample
) -> None:
    below = 0
    bounds = [*(f"{bound:g}" for bound in family.bounds), "+Inf"]
    for bound, count in zip(bounds, sample.counts, strict=False):
        below += count
        exposed.add_sample(f"{name}_bucket", {**labels, "le": bound}, below)
    exposed.add_sample(f"{name}_count", labels, below)
    exposed.add_sample(f"{name}_sum", labels, sample.value)
