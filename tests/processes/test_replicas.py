"""Replica servers: they serve when the job, its driver and its servers are gone, and step back when these return."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from keyhole import Client
from keyhole.errors import KeyholeError
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_client_proxy, start_state_server
from keyhole.model.read import Role
from tests.support.counting_job import STATE
from tests.support.pipeline import PATIENCE_SECONDS, Pipeline, Recount, counted

# Of one look, of which there are many: a busy machine answers in less.
LOOK_SECONDS = 30.0


class Replicated:
    """A pipeline, two replicas, and a proxy before all of them."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._cleanup = ExitStack()
        *self._ports, self._proxy_port = free_ports(3)

    def start(self) -> None:
        """The replicas, and the proxy."""
        pipeline = self.pipeline
        self.replicas = [self.start_replica(number) for number in range(len(self._ports))]
        servers = [pipeline.address, *(f"127.0.0.1:{port}" for port in self._ports)]
        proxy = start_client_proxy(
            "proxy", self._proxy_port, servers=servers, directory=pipeline.directory, environ=os.environ
        )
        self._cleanup.callback(proxy.kill)

    @property
    def proxy(self) -> str:
        return f"127.0.0.1:{self._proxy_port}"

    def start_replica(self, number: int) -> Child:
        settings = {
            "KEYHOLE_STATE_SERVER_ROLE": "replica",
            "KEYHOLE_STATE_SERVER_APPLICATIONS": self.pipeline.application,
            "KEYHOLE_STATE_SERVER_LINGER_SECONDS": "2",
        }
        child = start_state_server(
            f"replica-{number}",
            self._ports[number],
            bootstrap_servers=self.pipeline.bootstrap_servers,
            directory=self.pipeline.directory,
            environ={**os.environ, **settings},
        )
        self._cleanup.callback(child.kill)
        return child

    def answers(self) -> tuple[Recount, set[Role]]:
        """What the proxy says of every expected key, and in which roles."""
        keys = sorted(self.pipeline.expected)
        with Client(self.proxy, timeout=LOOK_SECONDS) as client:
            found = client.get_many(self.pipeline.application, STATE, keys)
        return counted(keys, found), {answer.role for answer in found}

    def await_answers(self, role: Role) -> None:
        """Every key as it was counted, by servers in this role alone."""
        until, last = time.monotonic() + PATIENCE_SECONDS, ""
        while True:
            try:
                answers, roles = self.answers()
                if (answers, roles) == (self.pipeline.expected, {role}):
                    return
                last = f"{roles}, {len(answers)} keys"
            except KeyholeError as error:
                last = error.message
            assert time.monotonic() < until, last
            time.sleep(0.5)

    def shares(self) -> list[int]:
        """How many key groups each replica can answer for, smallest first."""
        with Client(self.proxy, timeout=LOOK_SECONDS) as client:
            servers = [server for server in client.status() if server.server.startswith("replica")]
        return sorted(sum(len(holding.key_groups) for holding in server.holdings) for server in servers)

    def close(self) -> None:
        self._cleanup.close()


@pytest.fixture
def replicated(kafka: str, spark_jars: list[Path], tmp_path: Path) -> Iterator[Replicated]:
    with ExitStack() as cleanup:
        pipeline = Pipeline(tmp_path, kafka, spark_jars, mode="update")
        cleanup.callback(pipeline.close)
        running = Replicated(pipeline)
        cleanup.callback(running.close)
        running.start()
        yield running


def end_the_job(pipeline: Pipeline) -> None:
    for child in (pipeline.driver, pipeline.server):
        assert child is not None
        child.kill()
    pipeline.driver = pipeline.server = None


def test_replicas_serve_without_the_job_step_back_when_it_returns_and_take_over_from_one_that_was_killed(
    replicated: Replicated,
) -> None:
    pipeline = replicated.pipeline
    pipeline.produce(1000)
    pipeline.start_server()
    pipeline.start_driver(per_trigger=200)
    pipeline.await_recount()
    replicated.await_answers(Role.OWNER)
    pipeline.await_(lambda: replicated.shares() == [4, 4], "balanced replicas")

    end_the_job(pipeline)
    replicated.await_answers(Role.STANDBY)

    pipeline.produce(500, seed=8)
    pipeline.start_server()
    pipeline.start_driver(per_trigger=200)
    pipeline.await_recount()
    replicated.await_answers(Role.OWNER)

    end_the_job(pipeline)
    shutil.rmtree(pipeline.directory / "checkpoint")
    shutil.rmtree(pipeline.directory / "server-0")
    replicated.await_answers(Role.STANDBY)

    replicated.replicas[0].kill()
    pipeline.await_(lambda: max(replicated.shares(), default=0) == 8, "one replica with all key groups")
    replicated.await_answers(Role.STANDBY)
    replicated.start_replica(0)
    pipeline.await_(lambda: replicated.shares() == [4, 4], "balanced replicas")
    replicated.await_answers(Role.STANDBY)
