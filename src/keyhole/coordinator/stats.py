"""What a job says of itself (docs/metrics.md), from its driver: by gRPC and on a /metrics of its own.

Threads: the ports are served by one thread with an event loop of its own, which lives as long as the process: the job's
queries come and go.
"""

from __future__ import annotations

import asyncio
import atexit
import dataclasses
import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from keyhole.addresses import host_of, parted
from keyhole.clock import Clock, SystemClock
from keyhole.config import JobConfig, SecuritySettings
from keyhole.coordinator.counts import JobCounts, QueryCounts, SparkCounts
from keyhole.errors import InvalidConfiguration, KeyholeError
from keyhole.metrics.cardinality import MOST_QUERIES, MOST_TOPICS, Kept
from keyhole.metrics.counters import Refusals
from keyhole.metrics.families import Figures, process_start
from keyhole.metrics.metric import Component
from keyhole.v1 import stats_pb2 as pb

if TYPE_CHECKING:
    from keyhole.rpc.server import RpcServer
    from keyhole.security.guard import PortGuard

_log = logging.getLogger(__name__)

_JOB, _SPARK = "keyhole_job", "keyhole_spark"
_START_SECONDS = 10.0
_STOP_SECONDS = 2.0


class JobStats:
    """Of one application's driver.

    Args:
        stats: host:port to serve `Stats` on; empty: none.
        metrics: host:port of /metrics; empty: none.
        security: TLS, and who may ask; None: everybody, in plaintext.
    """

    def __init__(
        self,
        application: str,
        stats: str,
        metrics: str,
        clock: Clock,
        security: SecuritySettings | None = None,
    ) -> None:
        self._clock = clock
        self._security = security
        self.counts = JobCounts()
        self.refusals = Refusals()
        self.address = ""
        self._application = application
        self._stats = stats
        self._metrics = metrics
        self._started = process_start()
        self._names = Kept(MOST_QUERIES)
        self._topics = Kept(MOST_TOPICS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._ready = threading.Event()
        self._failure: KeyholeError | None = None
        self._thread = threading.Thread(target=self._run, name="keyhole-job-stats", daemon=True)

    @property
    def served(self) -> bool:
        """There is a port, of Stats or of metrics, on which somebody may ask."""
        return bool(self._stats or self._metrics)

    def start(self) -> None:
        """Serves, until `stop`. Where no address is given there is nothing to do.

        Raises:
            InvalidConfiguration: An address that is not host:port.
            PortTaken: Another process has it.
        """
        if not self.served:
            return
        self._thread.start()
        self._clock.wait(self._ready, _START_SECONDS)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Ends the port and its thread; waits for the thread a few seconds at most. Idempotent."""
        if self._loop is not None and self._stopped is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except KeyholeError as error:
            self._failure = error
        except Exception:  # noqa: BLE001 - the top of a thread; the job itself must not end for it
            _log.exception("serving the job's figures failed unexpectedly")
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        # Not at the top: a job that serves nothing needs none of it.
        from keyhole.metrics import serving
        from keyhole.rpc.server import RpcServer
        from keyhole.v1 import stats_pb2_grpc

        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        rpc = RpcServer("job", *parted(self._stats, "KEYHOLE_JOB_STATS"), self._security) if self._stats else None
        page = None
        if self._metrics:
            from keyhole.metrics.page import own_page

            page = own_page(self._metrics, self.read, self._guard(rpc))
        if rpc is not None:
            servicer = serving.StatsServicer(self.read)
            rpc.counted_by(self.refusals.note)
            rpc.add(stats_pb2_grpc.add_StatsServicer_to_server, servicer, serving.SERVICE)
            await rpc.start()
            await rpc.set_serving(True)
            self.address = rpc.address
        try:
            if page is not None:
                await page.start()
            self._ready.set()
            await self._stopped.wait()
        finally:
            if page is not None:
                await page.stop()
            if rpc is not None:
                await rpc.stop(0)

    def _guard(self, rpc: RpcServer | None) -> PortGuard | None:
        from keyhole.security.guard import PortGuard

        if rpc is not None:
            return rpc.guard
        if self._security is None:
            return None
        return PortGuard("job", host_of(self._metrics), self._security)

    async def read(self) -> pb.ReadStatsResponse:
        """Every metric of the job's queries, as of now."""
        figures = Figures()
        figures.process(Component.JOB, (self._application,), self._started)
        figures.refusals(Component.JOB, (self._application,), self.refusals)
        queries, spark = self.counts.all()
        self._names.note((self._application, name) for name in (*queries, *spark))
        for name, counts in queries.items():
            _tell_query(
                figures, self._names.label((self._application, name)), counts, self._age(counts.complete.commit_time_ms)
            )
        for name, of in spark.items():
            _tell_spark(figures, self._names.label((self._application, name)), of, self._age(of.watermark_ms))
        checked = self.counts.checked()
        self._topics.note((self._application, topic) for topic in checked)
        for topic, (records, rejected) in checked.items():
            labels = self._topics.label((self._application, topic))
            figures.add(f"{_JOB}_checked_records_total", labels, records)
            figures.add(f"{_JOB}_rejected_records_total", labels, rejected)
        sources = [
            pb.SourcePosition(query=name, topic=topic, partition=partition, offset=offset)
            for name, of in spark.items()
            for (topic, partition), offset in list(of.sources.items())
        ]
        return pb.ReadStatsResponse(
            component=pb.COMPONENT_JOB, name=self._application, families=figures.families(), sources=sources
        )

    def _age(self, since_ms: int) -> float:
        return max(0.0, (self._clock.now_ms() - since_ms) / 1000)


def _tell_query(figures: Figures, labels: tuple[str, str], counts: QueryCounts, commit_age_seconds: float) -> None:
    figures.add(f"{_JOB}_complete_epoch", labels, counts.complete.epoch)
    figures.add(f"{_JOB}_complete_epochs_total", labels, counts.epochs)
    figures.add(f"{_JOB}_replayed_epochs_total", labels, counts.replayed)
    figures.add(f"{_JOB}_epoch_rounds_total", labels, counts.rounds)
    if counts.generation:
        # Before it is taken it is not known, and 0 would look like one more change.
        figures.add(f"{_JOB}_run_generation", labels, counts.generation)
    figures.add(f"{_JOB}_assignment_version", labels, counts.assignment_version)
    figures.add(f"{_JOB}_member_servers", labels, counts.members)
    figures.add(f"{_JOB}_distrusted_servers_total", labels, counts.distrusted)
    figures.add(f"{_JOB}_fenced", labels, counts.fenced)
    figures.observed(f"{_JOB}_epoch_seconds", labels, counts.seconds)
    if counts.complete.commit_time_ms:
        figures.add(f"{_JOB}_commit_age_seconds", labels, commit_age_seconds)
    for phase, seconds in list(counts.phase_seconds.items()):
        figures.add(f"{_JOB}_phase_seconds_total", (*labels, phase), seconds)
    for reason, count in list(counts.failed.items()):
        figures.add(f"{_JOB}_failed_epochs_total", (*labels, reason), count)


def _tell_spark(figures: Figures, labels: tuple[str, str], counts: SparkCounts, watermark_age_seconds: float) -> None:
    figures.add(f"{_SPARK}_run_batches_total", labels, counts.batches)
    figures.add(f"{_SPARK}_batch_number", labels, counts.batch)
    figures.add(f"{_SPARK}_input_rows_total", labels, counts.input_rows)
    figures.add(f"{_SPARK}_input_rows_per_second", labels, counts.input_rows_per_second)
    figures.add(f"{_SPARK}_processed_rows_per_second", labels, counts.processed_rows_per_second)
    figures.add(f"{_SPARK}_state_rows", labels, counts.state_rows)
    figures.add(f"{_SPARK}_state_memory_bytes", labels, counts.state_memory_bytes)
    figures.add(f"{_SPARK}_state_updated_rows_total", labels, counts.state_updated)
    figures.add(f"{_SPARK}_state_dropped_rows_total", labels, counts.state_dropped)
    figures.add(f"{_SPARK}_state_commit_seconds_total", labels, counts.state_commit_seconds)
    figures.observed(f"{_SPARK}_batch_seconds", labels, counts.seconds)
    if counts.watermark_ms > 0:
        figures.add(f"{_SPARK}_watermark_age_seconds", labels, watermark_age_seconds)
    for phase, seconds in list(counts.phase_seconds.items()):
        figures.add(f"{_SPARK}_phase_seconds_total", (*labels, phase), seconds)


# What the ports are served by: not what the job calls others with, nor how long its epochs may take.
_CALLING = ("tls_server_name", "token_file")
_SECURED_BY = (field.name for field in dataclasses.fields(SecuritySettings) if field.name not in _CALLING)
_SERVED_BY = ("application", "stats", "metrics", *_SECURED_BY)


class _OfThisProcess:
    """The ports outlive the queries that come and go. These begin at the same time, each in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[tuple[str, ...], JobStats] = {}

    def of(self, config: JobConfig) -> JobStats:
        served_by = {name: getattr(config, name) for name in _SERVED_BY}
        key = tuple(served_by.values())
        with self._lock:
            if key not in self._made:
                self._check(served_by)
                made = JobStats(config.application, config.stats, config.metrics, SystemClock(), config)
                made.start()
                atexit.register(made.stop)
                self._made[key] = made
            return self._made[key]

    def _check(self, served_by: Mapping[str, str]) -> None:
        """No other one has one of the ports."""
        wanted = _fixed(served_by)
        for key in self._made:
            other = dict(zip(served_by, key, strict=True))
            for address in wanted & _fixed(other):
                differing = [name for name, value in served_by.items() if other[name] != value]
                raise InvalidConfiguration(
                    f"{address} tells the figures of {other['application']} in this process, by a configuration "
                    f"that differs in {', '.join(differing)}: give the same to all configurations of an application in "
                    "one process, and ports of its own to each application",
                    address=address,
                )


def _fixed(served_by: Mapping[str, str]) -> set[str]:
    """Its addresses, without those at any free port."""
    return {served_by[name] for name in ("stats", "metrics") if not served_by[name].endswith(":0")} - {""}


_HERE = _OfThisProcess()


def stats_of(config: JobConfig) -> JobStats:
    """The one of this process for a job's configuration, serving.

    Configurations have the same one unless they differ in the application, the ports, or how these are secured.

    Any thread.

    Raises:
        InvalidConfiguration: Another one has one of the ports; or as JobStats.start.
        PortTaken: As JobStats.start.
    """
    return _HERE.of(config)
