"""Spark's executors as processes of their own, a state server beside each: a pair is killed, another comes."""

from __future__ import annotations

import json
import os
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from keyhole import Client
from keyhole.cli.main import main
from keyhole.errors import KeyholeError
from keyhole.local.ports import Reservations, free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_client_proxy, start_state_server
from keyhole.model.read import Role
from tests.support.cluster_job import LATEST, SUMS
from tests.support.topics import make_topic
from tests.support.waiting import LONG_SECONDS

pytestmark = pytest.mark.timeout(1500)

KEYS = 40
# Seconds. Eight processes share the machine, four of them JVMs that have just begun.
PATIENCE = 600
# Executors are counted on with each that is lost; these are as many servers as can be told apart by their ports.
EXECUTORS = 10
# A look goes through all of the machine's processes.
_LOOK_SECONDS = 1.0


@dataclass
class Cluster:
    """A driver, its executors, and a state server for each. `close` ends them all."""

    directory: Path
    bootstrap_servers: str
    jars: Sequence[Path]
    application: str = field(default_factory=lambda: f"cluster-{uuid.uuid4().hex[:8]}")
    servers: dict[int, Child] = field(default_factory=dict)
    highest: dict[str, int] = field(default_factory=dict)
    total: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.topic = f"events-{self.application}"
        make_topic(self.bootstrap_servers, self.topic, 2)
        self.first_port = _free_range(EXECUTORS)
        self.template = f"127.0.0.1:{self.first_port // 10}{{executor}}"
        self._draw = random.Random(11)

    def start(self) -> None:
        options = {
            "topic": self.topic,
            "bootstrap_servers": self.bootstrap_servers,
            "checkpoint": str(self.directory / "checkpoint"),
            "directory": str(self.directory),
            "jars": [str(jar) for jar in self.jars],
            "per_trigger": 50,
        }
        environ = {
            "CLUSTER_JOB": json.dumps(options),
            "KEYHOLE_JOB_APPLICATION": self.application,
            "KEYHOLE_JOB_SERVERS": self.template,
            "KEYHOLE_JOB_BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "KEYHOLE_JOB_EPOCH_DEADLINE_SECONDS": "240",
        }
        command = [sys.executable, "-m", "tests.support.cluster_job"]
        self.driver = Child("driver", command, self.directory / "driver.log", {**os.environ, **environ})
        (port,) = free_ports(1)
        self.proxy_address = f"127.0.0.1:{port}"
        self.await_(lambda: bool(self.servers), PATIENCE, "first executor")
        addresses = [f"127.0.0.1:{self.first_port + number}" for number in range(EXECUTORS)]
        self.proxy = start_client_proxy(
            "proxy", port, servers=addresses, directory=self.directory, environ=dict(os.environ)
        )

    def produce(self, events: int) -> None:
        """Random events, counted here as they are sent."""
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "enable.idempotence": True})
        for _ in range(events):
            key, value = f"key-{self._draw.randrange(KEYS)}", self._draw.randrange(1_000_000)
            producer.produce(self.topic, json.dumps({"k": key, "v": value}))
            self.highest[key] = max(self.highest.get(key, 0), value)
            total, count = self.total.get(key, (0, 0))
            self.total[key] = total + value, count + 1
        assert producer.flush(LONG_SECONDS) == 0

    def executors(self) -> dict[int, psutil.Process]:
        """The executors' JVMs by executor id."""
        found = {}
        for process in psutil.Process(self.driver.pid).children(recursive=True):
            try:
                command = process.cmdline()
            except psutil.Error:
                continue
            if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in command:
                found[int(command[command.index("--executor-id") + 1])] = process
        return found

    def lose(self, executor: int) -> None:
        """SIGKILL to an executor and to the server beside it."""
        self.servers[executor].kill()
        self.executors()[executor].kill()

    def query(self) -> dict[str, str]:
        """Spark's id and run id of the query."""
        found: dict[str, str] = json.loads((self.directory / "query.json").read_text())
        return found

    def recounted(self) -> bool:
        """Whether both states say of every key what was sent."""
        keys = sorted(self.total)
        with Client(self.proxy_address, timeout=LONG_SECONDS) as client:
            sums = client.get_many(self.application, SUMS, keys)
            latest = client.get_many(self.application, LATEST, keys)
        return all(answer.found for answer in (*sums, *latest)) and (
            {key: (answer.value.total, answer.value.events) for key, answer in zip(keys, sums, strict=True)},
            {key: answer.value.v for key, answer in zip(keys, latest, strict=True)},
        ) == (self.total, self.highest)

    def owned(self, executor: int) -> dict[str, int]:
        """How many key groups of each state the server beside an executor owns."""
        with Client(f"127.0.0.1:{self.first_port + executor}", timeout=LONG_SECONDS) as client:
            (status,) = client.status()
        return {
            holding.descriptor.state: len(holding.key_groups)
            for holding in status.holdings
            if holding.source.role is Role.OWNER and holding.key_groups
        }

    def await_(self, done: Callable[[], bool], timeout_seconds: float, what: str) -> None:
        """Waits, and meanwhile starts a server beside each new executor."""
        until = time.monotonic() + timeout_seconds
        last: KeyholeError | None = None
        while True:
            self._tend()
            try:
                if done():
                    return
            except KeyholeError as error:
                last = error
            assert self.driver.exit_code is None, f"the driver ended before {what}:\n{self.driver.output()[-4000:]}"
            log = self.driver.output()[-3000:]
            assert time.monotonic() < until, f"no {what} within {timeout_seconds} s ({last}); driver:\n{log}"
            time.sleep(_LOOK_SECONDS)

    def _tend(self) -> None:
        for executor in self.executors().keys() - self.servers.keys():
            self.servers[executor] = start_state_server(
                f"server-{executor}",
                self.first_port + executor,
                bootstrap_servers=self.bootstrap_servers,
                directory=self.directory,
                environ=dict(os.environ),
            )

    def close(self) -> None:
        for child in (getattr(self, "driver", None), getattr(self, "proxy", None), *self.servers.values()):
            if child is not None:
                child.kill()


def _free_range(count: int) -> int:
    """The first of `count` ports that differ in their last digit only; they are this process's until it ends."""
    while True:
        (port,) = free_ports(1)
        first = port // 10 * 10
        others = [first + number for number in range(count) if first + number != port]
        reserved = Reservations()
        if [reserved.choose(other) for other in others] == others:
            return first
        with reserved:
            pass  # gives them back


@pytest.fixture
def cluster(kafka: str, spark_jars: list[Path], tmp_path: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path, kafka, spark_jars)
    yield running
    running.close()


def test_a_lost_executor_and_its_server_end_no_query_and_lose_nothing_and_the_next_pair_takes_over(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def handed_over() -> bool:
        try:
            cluster.recounted()
        except KeyholeError as error:
            raise AssertionError("a read failed during a planned handover") from error
        return cluster.owned(new) == {LATEST: 4, SUMS: 4}

    cluster.produce(200)
    cluster.start()
    cluster.await_(lambda: len(cluster.servers) == 3 and cluster.recounted(), PATIENCE, "recount of the first events")
    assert sum(cluster.owned(executor).get(SUMS, 0) for executor in cluster.servers) == 12
    before = cluster.query()
    three = set(cluster.servers)

    cluster.produce(400)
    lost = min(three)
    cluster.lose(lost)
    cluster.await_(lambda: bool(cluster.servers.keys() - three), PATIENCE, "new executor")
    (new,) = cluster.servers.keys() - three
    assert new > max(three), "no executor's number is given twice"
    cluster.await_(cluster.recounted, PATIENCE, "recount after the loss")

    # Twelve key groups over three servers again, taken from owners that live: by planned handover, between two epochs.
    cluster.produce(100)
    cluster.await_(handed_over, PATIENCE, "planned handover to the new server")
    cluster.await_(cluster.recounted, PATIENCE, "recount after the handover")
    assert cluster.query() == before
    assert cluster.driver.exit_code is None

    # Record by record: each owner, the standbys that have been moved too, and the changelog.
    path, kafka = f"{cluster.application}/{LATEST}", cluster.bootstrap_servers
    servers = ",".join(f"127.0.0.1:{cluster.first_port + executor}" for executor in cluster.servers if executor != lost)
    assert main(["verify", path, "--bootstrap-servers", kafka, "--servers", servers, "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert {copy["role"] for copy in verdict["copies"]} == {Role.OWNER, Role.STANDBY}
    assert sum(copy["key_groups"] for copy in verdict["copies"]) == 2 * 12
