"""Puts a metrics exporter together. `serve` runs it until it is to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from keyhole.addresses import joined
from keyhole.changelog.kafka.offsets import TopicOffsets
from keyhole.clock import Clock, SystemClock
from keyhole.config import MetricsExporterConfig
from keyhole.discovery import Discovery, FollowedServers, discovery_of
from keyhole.errors import InvalidConfiguration
from keyhole.metrics import exposition
from keyhole.metrics.families import Figures, process_start
from keyhole.metrics.metric import Component
from keyhole.metrics.page import MetricsPage
from keyhole.security.guard import PortGuard
from services.metrics_exporter.asking import ScrapeTarget, Targets
from services.metrics_exporter.kafka_look import Found, KafkaLook, Offsets
from services.metrics_exporter.pod_watch import PodWatch
from services.metrics_exporter.scrape import ScrapedAnswer, Views

_log = logging.getLogger(__name__)

_P = "keyhole_exporter"
# What was said is put together that often; what the exporter says of itself is made at each scrape.
_VIEW_SECONDS = 1.0
# Less often where it takes long (of a hundred servers, with ten states each, about half a second).
_VIEW_SHARE = 0.1


class MetricsExporter:
    """One exporter. Make it inside the running event loop.

    Args:
        discoveries: By component; those that are missing are not asked.
        offsets: Kafka; None: it is not asked.
        pods: Whose containers' ends are counted; the caller's to close. None: of no pods.
    """

    def __init__(
        self,
        config: MetricsExporterConfig,
        discoveries: Mapping[Component, Discovery],
        offsets: Offsets | None,
        clock: Clock,
        pods: PodWatch | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._pods = pods
        self._targets = [Targets(component, of, self._target) for component, of in discoveries.items()]
        self._kafka = KafkaLook(offsets, clock, config.kafka_interval_seconds) if offsets is not None else None
        guard = PortGuard("metrics-exporter", config.host, config)
        self._page = MetricsPage(joined(config.host, config.port), self._scrape, guard)
        self._views = Views()
        self._started = process_start()
        self._body = b""
        self._unknown: Mapping[Component, int] = {}
        self._put_together: object = None
        self._viewed_monotonic = clock.monotonic()
        self._scrape_seconds = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where the page is found, as host:port; known after `start`."""
        return self._page.address

    def _target(self, component: Component, address: str) -> ScrapeTarget:
        config = self._config
        return ScrapeTarget(
            component, address, self._clock, config.interval_seconds, config.timeout_seconds, config.credentials
        )

    async def start(self) -> None:
        """Binds, and begins to ask.

        Raises:
            PortTaken: See MetricsPage.start.
        """
        await self._page.start()
        for targets in self._targets:
            targets.start()
        if self._pods is not None:
            self._pods.start()
        if self._kafka is not None:
            self._kafka.start()
        self._task = asyncio.get_running_loop().create_task(self._look())

    async def follow_until(self, stopping: asyncio.Event) -> None:
        """Serves until `stopping` is set.

        Raises:
            InvalidConfiguration: A discovery is refused its answer, as it was from the start.
        """
        stopped = asyncio.ensure_future(stopping.wait())
        following = [targets.following for targets in self._targets]
        if self._pods is not None:
            following.append(self._pods.following)
        try:
            done, _ = await asyncio.wait((stopped, *following), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await task
        finally:
            stopped.cancel()

    async def stop(self) -> None:
        """Asks nobody any more, and gives the port back."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._pods is not None:
            await self._pods.stop()
        if self._kafka is not None:
            self._kafka.close()
        await asyncio.gather(*(targets.close() for targets in self._targets))
        await self._page.stop()

    async def _look(self) -> None:
        while True:
            began = self._clock.monotonic()
            try:
                await self.put_together()
            except Exception:  # noqa: BLE001 - the top of a loop: what is exposed would stay as it is for ever
                _log.exception("the answers could not be put together")
            took = self._clock.monotonic() - began
            await self._clock.pause(max(_VIEW_SECONDS, took / _VIEW_SHARE))

    async def put_together(self) -> None:
        """Makes what scrapes get of what has been answered until now, where there is anything new."""
        answers, asked = self._answers(), [target.asked for targets in self._targets for target in targets]
        found = self._kafka.found if self._kafka is not None else None
        if (asked, found) != self._put_together:
            body = await asyncio.to_thread(self._text, answers)
            self._body, self._put_together = body, (asked, found)
        self._viewed_monotonic = self._clock.monotonic()

    def _answers(self) -> list[ScrapedAnswer]:
        answers = []
        for targets in self._targets:
            for target in targets:
                if target.age_seconds > self._config.forget_seconds:
                    target.forget()
                if target.answer is not None:
                    answers.append(ScrapedAnswer(target.component, target.up, target.answer, target.address))
        return answers

    def _text(self, answers: list[ScrapedAnswer]) -> bytes:
        """In a thread: it takes a while, and scrapes and answers must not wait for it."""
        kafka = self._kafka
        view = self._views.make(
            answers, kafka.found if kafka else Found(), self._clock.now_ms(), self._clock.monotonic()
        )
        self._unknown = view.unknown
        if kafka is not None:
            kafka.wanted = view.wanted
        return exposition.text(view.families)

    async def _scrape(self) -> bytes:
        began = self._clock.monotonic()
        body = exposition.text(self._own().families()) + self._body
        self._scrape_seconds = self._clock.monotonic() - began
        return body

    def _own(self) -> Figures:
        figures = Figures()
        figures.process(Component.EXPORTER, (), self._started)
        figures.add(f"{_P}_scrape_seconds", (), self._scrape_seconds)
        figures.add(f"{_P}_view_age_seconds", (), self._clock.monotonic() - self._viewed_monotonic)
        for targets in self._targets:
            all_of = list(targets)
            figures.add(f"{_P}_discovered_targets", (targets.component,), len(all_of))
            figures.add(f"{_P}_unknown_metrics", (targets.component,), self._unknown.get(targets.component, 0))
            for target in all_of:
                _tell(figures, target)
        if self._pods is not None:
            for (container, cause), count in self._pods.ends.counts.items():
                figures.add(f"{_P}_ended_containers_total", (container, cause), count)
        if self._kafka is not None:
            if self._kafka.up is not None:
                figures.add(f"{_P}_kafka_up", (), self._kafka.up)
            if self._kafka.age_seconds != float("inf"):
                figures.add(f"{_P}_kafka_age_seconds", (), self._kafka.age_seconds)
        return figures


def _tell(figures: Figures, target: ScrapeTarget) -> None:
    labels = (target.component, target.address)
    figures.add(f"{_P}_up", labels, target.up)
    figures.add(f"{_P}_failed_asks_total", labels, target.failed)
    if target.age_seconds != float("inf"):
        figures.add(f"{_P}_answer_age_seconds", labels, target.age_seconds)
        figures.add(f"{_P}_ask_seconds", labels, target.ask_seconds)


def discoveries(config: MetricsExporterConfig) -> dict[Component, FollowedServers]:
    """Whom to ask. They are the caller's to close.

    Raises:
        InvalidConfiguration: Nobody, or an entry that is spelled otherwise than keyhole.discovery reads it.
    """
    named = {
        Component.STATE_SERVER: config.servers,
        Component.CLIENT_PROXY: config.proxies,
        Component.JOB: config.coordinators,
    }
    found = {component: discovery_of(entries) for component, entries in named.items() if entries}
    if not found:
        raise InvalidConfiguration(
            "there is nobody to ask: set KEYHOLE_METRICS_EXPORTER_SERVERS, KEYHOLE_METRICS_EXPORTER_PROXIES or "
            "KEYHOLE_METRICS_EXPORTER_COORDINATORS"
        )
    return found


async def serve(config: MetricsExporterConfig, stopping: asyncio.Event) -> None:
    """Runs an exporter until it is to stop.

    Raises:
        PortTaken: See MetricsExporter.start.
        InvalidConfiguration: See `discoveries`; or a discovery is refused its answer, as it was from the start.
    """
    found = discoveries(config)
    offsets = TopicOffsets(config.bootstrap_servers, partial=True) if config.bootstrap_servers else None
    pods = PodWatch(config.pods) if config.pods else None
    exporter = MetricsExporter(config, found, offsets, SystemClock(), pods)
    try:
        await exporter.start()
        _log.info("started %s %s", "metrics-exporter", exporter.address, extra={"address": exporter.address})
        await exporter.follow_until(stopping)
    finally:
        await exporter.stop()
        for discovery in found.values():
            discovery.close()
        if pods is not None:
            pods.close()
