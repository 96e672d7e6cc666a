"""What processes say of themselves, as tests look at it."""

from __future__ import annotations

from keyhole.metrics.catalogue import BY_NAME
from keyhole.rpc import channels
from keyhole.v1 import stats_pb2 as pb
from keyhole.v1 import stats_pb2_grpc
from tests.support.waiting import PATIENCE_SECONDS


async def read_stats(address: str) -> pb.ReadStatsResponse:
    """From a process that listens there."""
    async with channels.aio_channel(address) as channel:
        response: pb.ReadStatsResponse = await stats_pb2_grpc.StatsStub(channel).Read(
            pb.ReadStatsRequest(), timeout=PATIENCE_SECONDS
        )
    return response


def value(stats: pb.ReadStatsResponse, name: str, **labels: str) -> float:
    """The sum of the samples that have these labels; of a histogram, how often it was observed."""
    assert name in BY_NAME, name
    return sum(_number(sample) for family, sample in _samples(stats, name, labels) if family)


def names(stats: pb.ReadStatsResponse) -> set[str]:
    """Of all metrics that have samples."""
    return {family.name for family in stats.families if family.samples}


def beyond_the_catalogue(stats: pb.ReadStatsResponse) -> list[str]:
    """Metrics that have more series than the catalogue says, or other labels."""
    found = []
    for family in stats.families:
        metric = BY_NAME[family.name]
        series = len(family.samples) * (len(metric.buckets) + 3 if metric.buckets else 1)
        if tuple(family.labels) != metric.labels or series > metric.most_series:
            found.append(family.name)
    return found


def _samples(
    stats: pb.ReadStatsResponse, name: str, labels: dict[str, str]
) -> list[tuple[pb.MetricFamily, pb.MetricSample]]:
    return [
        (family, sample)
        for family in stats.families
        if family.name == name
        for sample in family.samples
        if labels.items() <= dict(zip(family.labels, sample.labels, strict=True)).items()
    ]


def _number(sample: pb.MetricSample) -> float:
    return sum(sample.counts) if sample.counts else sample.value
