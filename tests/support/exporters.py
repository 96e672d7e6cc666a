"""Real exporters inside a test's event loop, scraped over HTTP and read by Prometheus's own parser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import aiohttp
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from keyhole.clock import SystemClock
from keyhole.config import MetricsExporterConfig
from services.metrics_exporter.app import MetricsExporter, discoveries
from services.metrics_exporter.kafka_look import Offsets
from services.metrics_exporter.pod_watch import PodWatch
from tests.support.waiting import PATIENCE_SECONDS


class Scrape:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self._families: dict[str, Metric] = {}
        for family in text_string_to_metric_families(text):
            assert family.name not in self._families, f"{family.name} is there twice"
            self._families[family.name] = family

    @property
    def names(self) -> set[str]:
        """As the catalogue has them."""
        return {f.name + ("_total" if f.type == "counter" else "") for f in self._families.values() if f.samples}

    def value(self, name: str, **labels: str) -> float | None:
        """The sum of the samples with these labels; of a histogram its count; None: there is none."""
        family = self._families.get(name.removesuffix("_total"))
        wanted = f"{name}_count" if family is not None and family.type == "histogram" else name
        found = [
            sample.value
            for sample in (family.samples if family is not None else ())
            if sample.name == wanted and labels.items() <= sample.labels.items()
        ]
        return sum(found) if found else None


async def scrape(address: str) -> Scrape:
    """Of whoever listens there."""
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}/metrics") as answer:
        assert answer.status == 200
        return Scrape(await answer.text())


@asynccontextmanager
async def exporter_of(
    servers: Sequence[str] = (),
    proxies: Sequence[str] = (),
    coordinators: Sequence[str] = (),
    *,
    interval_seconds: float = 0.1,
    timeout_seconds: float = PATIENCE_SECONDS,
    forget_seconds: float = 60.0,
    offsets: Offsets | None = None,
    pods: PodWatch | None = None,
) -> AsyncIterator[MetricsExporter]:
    """Started, and stopped at the end."""
    settings: Mapping[str, tuple[str, ...]] = {
        "servers": tuple(servers),
        "proxies": tuple(proxies),
        "coordinators": tuple(coordinators),
    }
    config = MetricsExporterConfig(
        **settings,
        port=0,
        interval_seconds=interval_seconds,
        timeout_seconds=timeout_seconds,
        forget_seconds=forget_seconds,
        kafka_interval_seconds=0.05,
    )
    exporter = MetricsExporter(config, discoveries(config), offsets, SystemClock(), pods)
    await exporter.start()
    try:
        yield exporter
    finally:
        await exporter.stop()


async def scraped(exporter: MetricsExporter, **wanted: float) -> Scrape:
    """The first scrape in which these metrics have these values, without `keyhole_`: others may come later."""
    while True:
        await exporter.put_together()
        found = await scrape(exporter.address)
        if all(found.value(f"keyhole_{name}") == value for name, value in wanted.items()):
            return found
        await asyncio.sleep(0.02)
