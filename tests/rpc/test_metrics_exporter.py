"""The exporter over real servers and proxies, on real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile

import aiohttp
import pytest

from keyhole import AsyncClient
from keyhole.local.ports import free_ports
from keyhole.metrics.catalogue import BY_NAME
from keyhole.testing.changelog import MemoryKafka
from keyhole.testing.stats import SimulatedServer
from services.metrics_exporter.kafka_look import Offsets
from tests.support.exporters import exporter_of, scrape, scraped
from tests.support.kubernetes_api import kubernetes_api, status_body
from tests.support.proxies import proxy_of, unused_address
from tests.support.readings import APPLICATION, STATE, descriptor, rows
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS

KEY_GROUPS = descriptor().key_groups
KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: u, user: {{token: t}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"""


async def test_it_tells_what_all_say_and_what_shows_from_all_of_them() -> None:
    async with (
        state_server("server-a") as server,
        proxy_of(server.address) as proxy,
        exporter_of([server.address], [proxy.address]) as exporter,
    ):
        await server.own(descriptor())
        await server.commit(rows(5))
        async with AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
            await client.get(APPLICATION, STATE, "sensor-1")
        found = await scraped(
            exporter,
            client_proxy_lookup_keys_total=1,
            state_server_committed_rows_total=5,
            cluster_oldest_epoch=1,
            exporter_up=2,
        )
        assert found.names <= BY_NAME.keys()
        of = {"application": APPLICATION, "state": STATE}
        assert found.value("keyhole_state_server_committed_rows_total", server="server-a", **of) == 5
        assert found.value("keyhole_cluster_all_key_groups", **of) == KEY_GROUPS
        assert found.value("keyhole_cluster_unowned_key_groups", **of) == 0
        assert found.value("keyhole_cluster_oldest_epoch", **of) == 1
        assert found.value("keyhole_exporter_up", component="state_server", target=server.address) == 1
        assert found.value("keyhole_exporter_up", component="client_proxy", target=proxy.address) == 1
        assert found.value("keyhole_exporter_answer_age_seconds") is not None


async def test_a_server_that_ends_leaves_its_key_groups_unowned_and_its_standby_readable() -> None:
    kafka = MemoryKafka()
    async with (
        state_server("owner", kafka) as owner,
        state_server("follower", kafka) as follower,
        exporter_of([owner.address, follower.address], timeout_seconds=5.0) as exporter,
    ):
        await owner.own(descriptor())
        await owner.commit(rows(5))
        owner.complete()
        await follower.follow(descriptor())
        found = await scraped(
            exporter, cluster_followed_key_groups=KEY_GROUPS, state_server_committed_rows_total=5, exporter_up=2
        )
        assert found.value("keyhole_cluster_unowned_key_groups") == 0
        await owner.server.stop()
        found = await scraped(exporter, cluster_unowned_key_groups=KEY_GROUPS, exporter_up=1)
        assert found.value("keyhole_cluster_unreadable_key_groups") == 0
        assert found.value("keyhole_exporter_up", target=owner.address) == 0
        assert (found.value("keyhole_exporter_failed_asks_total", target=owner.address) or 0) > 0
        # What it said of itself stays for a while.
        assert found.value("keyhole_state_server_committed_rows_total", server="owner") == 5


async def test_the_last_answer_of_one_that_is_gone_is_forgotten_after_a_while() -> None:
    async with state_server("server-a") as server, exporter_of([server.address], forget_seconds=2.0) as exporter:
        await scraped(exporter, state_server_ready=0)
        await server.server.stop()
        while (await scrape(exporter.address)).value("keyhole_state_server_ready") is not None:
            await exporter.put_together()
            await asyncio.sleep(0.05)


async def test_a_server_that_never_answers_holds_up_neither_scrapes_nor_others() -> None:
    """It takes connections and says nothing: each question to it ends with its deadline."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        dead = f"127.0.0.1:{silent.getsockname()[1]}"
        # Longer than the test may take: whoever waits for it fails.
        async with (
            state_server("server-a") as server,
            exporter_of([dead, server.address], timeout_seconds=300) as exporter,
        ):
            found = await scraped(exporter, state_server_ready=0)
            for _ in range(20):
                found = await scrape(exporter.address)
            assert found.value("keyhole_exporter_up", target=dead) == 0
            assert found.value("keyhole_exporter_up", target=server.address) == 1
            assert found.value("keyhole_exporter_discovered_targets", component="state_server") == 2


class Kafka(Offsets):
    """Every topic holds so many records in each partition."""

    def __init__(self, records: int) -> None:
        self._records = records

    def ends(self, topics: object, timeout_seconds: float) -> dict[tuple[str, int], int]:
        assert isinstance(topics, dict)
        return {(topic, part): self._records for topic, parts in topics.items() for part in parts}

    def starts(self, topics: object, timeout_seconds: float) -> dict[tuple[str, int], int]:
        assert isinstance(topics, dict)
        return {(topic, part): 0 for topic, parts in topics.items() for part in parts}


async def test_the_changelogs_sizes_are_told() -> None:
    async with state_server("server-a") as server, exporter_of([server.address], offsets=Kafka(3)) as exporter:
        await server.own(descriptor())
        found = await scraped(exporter, kafka_changelog_records=3 * KEY_GROUPS)
        assert found.value("keyhole_exporter_kafka_up") == 1


async def test_a_hundred_servers_are_told_in_one_scrape() -> None:
    servers = [SimulatedServer(f"server-{n}", 3, [n], 101) for n in range(100)]
    for server in servers:
        await server.start()
    try:
        async with exporter_of([server.address for server in servers], interval_seconds=1.0) as exporter:
            found = await scraped(exporter, exporter_up=100, state_server_lookup_keys_total=300)
            # Where the machine is slow, not all of them have told their holdings when all are up.
            while found.value("keyhole_cluster_unowned_key_groups", state="state-1") != 1:
                found = await scraped(exporter, exporter_up=100)
            assert found.names <= BY_NAME.keys()
    finally:
        await asyncio.gather(*(server.stop() for server in servers))


async def test_probes_find_it_healthy() -> None:
    async with (
        state_server("server-a") as server,
        exporter_of([server.address]) as exporter,
        aiohttp.ClientSession() as session,
        session.get(f"http://{exporter.address}/healthz") as answer,
    ):
        assert (answer.status, await answer.text()) == (200, "ok\n")


def test_its_process_starts_serves_and_ends_with_sigterm() -> None:
    (port,) = free_ports(1)
    with unused_address() as nobody:
        environ = {**os.environ, "KEYHOLE_METRICS_EXPORTER_SERVERS": nobody, "KEYHOLE_METRICS_EXPORTER_PORT": str(port)}
        command = [sys.executable, "-m", "services.metrics_exporter"]
        with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
            try:
                found = asyncio.run(_first_scrape(f"127.0.0.1:{port}"))
                assert found == 0
            finally:
                process.terminate()
            assert process.wait(LONG_SECONDS) == 0


async def _first_scrape(address: str) -> float | None:
    while True:
        try:
            found = await scrape(address)
        except aiohttp.ClientConnectorError:
            await asyncio.sleep(0.1)
            continue
        if (up := found.value("keyhole_exporter_up")) is not None:
            return up


def test_who_may_not_list_pods_ends_and_says_so() -> None:
    with kubernetes_api() as api, tempfile.NamedTemporaryFile("w", suffix=".yaml") as kubeconfig:
        api.failing["list"] = 403, status_body(403, "pods is forbidden")
        kubeconfig.write(KUBECONFIG.format(port=api.port))
        kubeconfig.flush()
        environ = {
            **os.environ,
            "KUBECONFIG": kubeconfig.name,
            "KEYHOLE_METRICS_EXPORTER_SERVERS": "kubernetes:7410?namespace=data",
            "KEYHOLE_METRICS_EXPORTER_PORT": "0",
        }
        command = [sys.executable, "-m", "services.metrics_exporter"]
        ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LONG_SECONDS)
    assert ended.returncode == 1
    assert "pods is forbidden" in ended.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "there is nobody to ask"),
        ({"SERVERS": "not-an-address"}, "not host:port"),
        ({"SERVERS": "kubernetes:7410?name=x"}, "it has 'name'"),
        ({"SERVERS": "127.0.0.1:7410", "INTERVAL": "5"}, "unknown setting KEYHOLE_METRICS_EXPORTER_INTERVAL"),
    ],
)
def test_settings_that_can_not_work_are_refused_by_name(settings: dict[str, str], message: str) -> None:
    environ = {**os.environ, **{f"KEYHOLE_METRICS_EXPORTER_{name}": value for name, value in settings.items()}}
    command = [sys.executable, "-m", "services.metrics_exporter"]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LONG_SECONDS)
    assert ended.returncode == 1
    assert message in ended.stderr
