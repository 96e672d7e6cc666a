"""Every metric of the catalogue is exposed by whom it says, and nothing else is."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from keyhole.clock import SystemClock
from keyhole.coordinator.progress import note_progress
from keyhole.coordinator.stats import JobStats
from keyhole.metrics.catalogue import of
from keyhole.metrics.metric import Component
from keyhole.model.epoch import EpochStamp
from keyhole.rpc import channels
from keyhole.testing.changelog import MemoryKafka
from keyhole.v1 import query_pb2, query_pb2_grpc
from services.metrics_exporter.pod_watch import PodWatch
from services.state_server.read.feed_progress import FeedProgress
from services.state_server.read.standing import Lease, Standing
from tests.rpc.test_metrics_exporter import Kafka
from tests.support import figures
from tests.support.exporters import exporter_of, scrape
from tests.support.hosts import Hosted
from tests.support.kubernetes_api import kubernetes_api
from tests.support.proxies import proxy_of
from tests.support.readings import APPLICATION, descriptor, rows
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS
from tests.unit.test_job_stats import PROGRESS
from tests.unit.test_server_stats import ALL_GROUPS, Server


def catalogue(component: Component) -> set[str]:
    return {metric.name for metric in of(component)}


async def test_a_state_server_exposes_its_part(tmp_path: Path) -> None:
    hosted = Hosted()
    await hosted.own()
    hosted.host.epochs.failed["KAFKA_UNREACHABLE"] += 1
    server = Server(1, tmp_path)
    server.add("indexed", Lease(server.clock, 3.0), index=("n",))
    server.registry._hosts["app", "main"] = hosted.host
    server.registry.counts.refusals.note("denied")
    table = server.registry.tables["app", "state-0"]
    table.reads.failed["NOT_READY"] += 1
    table.given.follow(ALL_GROUPS, shown=ALL_GROUPS)
    table.feed = FeedProgress(server.clock)
    behind = Standing(EpochStamp(2, 0, 1, 1), as_of_ms=1, lag_epochs=1)
    table.standby.publish(table.store.snapshot(), ALL_GROUPS, behind, {})
    try:
        assert figures.names(await server.stats.read()) == catalogue(Component.STATE_SERVER)
    finally:
        await hosted.host.close()


async def test_a_client_proxy_exposes_its_part() -> None:
    async with state_server("server-a") as server, proxy_of(server.address) as proxy:
        await server.own(descriptor())
        proxy._servicer.counts.refusals.note("denied")
        async with channels.aio_channel(proxy.address) as channel:
            keys = [query_pb2.Key(parts=[query_pb2.KeyPart(string="sensor-1")])]
            request = query_pb2.GetManyRequest(state=query_pb2.StateRef(application=APPLICATION, state="x"), keys=keys)
            with pytest.raises(grpc.aio.AioRpcError):
                await query_pb2_grpc.QueryStub(channel).GetMany(request)
        stats = await figures.read_stats(proxy.address)
    assert figures.names(stats) == catalogue(Component.CLIENT_PROXY)


def full_job() -> JobStats:
    job = JobStats(APPLICATION, "127.0.0.1:0", "", SystemClock())
    note_progress(job.counts.spark("main"), PROGRESS)
    counts = job.counts.query("main")
    counts.complete, counts.generation = EpochStamp(1, 1, 1, 1), 1
    counts.failed["EPOCH_FAILED"] += 1
    job.counts.check("orders", 2, 1)
    job.refusals.note("denied")
    with counts.phase("stage", SystemClock()):
        pass
    return job


async def test_a_job_exposes_its_part() -> None:
    assert figures.names(await full_job().read()) == catalogue(Component.JOB)


async def test_the_exporter_exposes_its_part_and_that_of_all_others() -> None:
    kafka, job = MemoryKafka(), full_job()
    job.start()
    try:
        with kubernetes_api() as api, closing(PodWatch("a=b", api.connect)) as pods:
            await _all_is_exposed(kafka, job, pods)
    finally:
        job.stop()


async def _all_is_exposed(kafka: MemoryKafka, job: JobStats, pods: PodWatch) -> None:
    async with (
        state_server("owner", kafka) as owner,
        state_server("follower", kafka) as follower,
        proxy_of(owner.address, follower.address) as proxy,
        exporter_of(
            [owner.address, follower.address], [proxy.address], [job.address], offsets=Kafka(1_000), pods=pods
        ) as exporter,
    ):
        await owner.own(descriptor())
        await owner.commit(rows(5), watermark_ms=1)
        owner.complete()
        await follower.follow(descriptor())
        seen: set[str] = set()
        async with asyncio.timeout(LONG_SECONDS):
            while not catalogue(Component.EXPORTER) | catalogue(Component.JOB) <= seen:
                await asyncio.sleep(0.1)
                seen |= (await scrape(exporter.address)).names
        assert seen <= {metric.name for component in Component for metric in of(component)}
