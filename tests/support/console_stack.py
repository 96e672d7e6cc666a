"""What the console's pages show in their tests: two servers, two client proxies, states that are written, or fed."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka import Producer

from keyhole import Client
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.config import JobConfig
from keyhole.errors import KeyholeError
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import answers, serves, spawn_client_proxy, spawn_state_server
from keyhole.testing.writer import Writer
from tests.support.tokens import make_tokens
from tests.support.waiting import LONG_SECONDS, until

APPLICATION = "console-weather"
HOSTILE = '<img src=x onerror="alert(1)">'
BEGIN = datetime(2026, 11, 27, tzinfo=UTC)
BIG = 2**63 - 1
_ORDERS = f"{APPLICATION}-orders"
# Of processes that start beside each other, and beside others.
_START_SECONDS = 5 * LONG_SECONDS

_POLICY = f"""
[[allow]]
who = ["token:operator"]
verbs = ["admin", "read", "scan"]
states = ["*/*"]

[[allow]]
who = ["token:reader"]
verbs = ["read"]
states = ["{APPLICATION}/hourly"]
"""


@dataclass
class ConsoleStack:
    """All of it, as processes of their own."""

    directory: Path
    kafka: str
    server_ports: list[int] = field(default_factory=lambda: free_ports(2))
    proxy_ports: list[int] = field(default_factory=lambda: free_ports(4))
    metrics_ports: list[int] = field(default_factory=lambda: free_ports(2))
    children: dict[str, Child] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Of the proxy that lets everybody see everything."""
        return f"http://127.0.0.1:{self.proxy_ports[1]}/console/"

    @property
    def secured_url(self) -> str:
        """Of the proxy that asks for tokens."""
        return f"http://127.0.0.1:{self.proxy_ports[3]}/console/"

    @property
    def servers(self) -> list[str]:
        """host:port of the state servers."""
        return [f"127.0.0.1:{port}" for port in self.server_ports]

    @property
    def pages(self) -> list[str]:
        """host:port of the servers' own /metrics."""
        return [f"127.0.0.1:{port}" for port in self.metrics_ports]

    def token(self, name: str) -> str:
        """Of "operator" or "reader"."""
        return (self.directory / f"{name}.token").read_text().strip()

    def start(self, *names: str) -> None:
        """Starts "server-0", "server-1", "proxy" or "secured", and waits until they answer."""
        for name in names:
            self.children[name] = self._spawn(name)
        for name in names:
            self.children[name].wait_healthy(lambda name=name: self._answers(name), _START_SECONDS)  # type: ignore[misc]

    def start_feeder(self) -> None:
        """Feeds the state "orders" from then on, without Spark; returns once it is one."""
        words = (
            "feed",
            f"{APPLICATION}/orders",
            "--topic",
            _ORDERS,
            "--key",
            "customer",
            "--reduce",
            "amount:bigint=sum",
            "--index",
            "amount",
        )
        where = ("--key-groups", "4", "--bootstrap-servers", self.kafka, "--servers", ",".join(self.servers))
        command = [sys.executable, "-m", "keyhole.cli.main", *words, *where]
        feeder = self.children["feeder"] = Child("feeder", command, self.directory / "feeder.log", dict(os.environ))
        feeder.wait_healthy(self._is_fed, _START_SECONDS)

    def kill(self, name: str) -> None:
        """SIGKILL."""
        child = self.children.pop(name)
        os.killpg(child.pid, signal.SIGKILL)
        until(lambda: child.exit_code is not None, LONG_SECONDS)

    def _is_fed(self) -> bool:
        try:
            with Client(f"127.0.0.1:{self.proxy_ports[0]}", timeout=LONG_SECONDS) as client:
                return any(of.state == "orders" for of in client.list_states())
        except KeyholeError:
            return False

    def _answers(self, name: str) -> bool:
        if name.startswith("server"):
            return answers(self.servers[int(name[-1])])
        return serves(f"127.0.0.1:{self.proxy_ports[0 if name == 'proxy' else 2]}")

    def _spawn(self, name: str) -> Child:
        environ = dict(os.environ)
        if name.startswith("server"):
            port = self.server_ports[int(name[-1])]
            environ["KEYHOLE_STATE_SERVER_STORE"] = "memory"
            environ["KEYHOLE_STATE_SERVER_METRICS"] = self.pages[int(name[-1])]
            return spawn_state_server(
                name, port, bootstrap_servers=self.kafka, directory=self.directory, environ=environ
            )
        port, http_port = self.proxy_ports[:2] if name == "proxy" else self.proxy_ports[2:]
        environ["KEYHOLE_CLIENT_PROXY_HTTP"] = f"127.0.0.1:{http_port}"
        if name == "secured":
            environ["KEYHOLE_CLIENT_PROXY_POLICY"] = str(self.directory / "policy.toml")
            environ["KEYHOLE_CLIENT_PROXY_TOKENS"] = str(self.directory / "tokens.toml")
        return spawn_client_proxy(name, port, servers=self.servers, directory=self.directory, environ=environ)


@contextmanager
def console_stack(directory: Path, kafka: str) -> Iterator[ConsoleStack]:
    """Started, with states whose writers go on."""
    stack = ConsoleStack(directory, kafka)
    (directory / "policy.toml").write_text(_POLICY)
    (directory / "tokens.toml").write_text(make_tokens(directory, "operator", "reader"))
    with ExitStack() as ending:
        ending.callback(lambda: [child.kill() for child in stack.children.values()])
        stack.start("server-0", "server-1", "proxy", "secured")
        config = JobConfig(APPLICATION, tuple(stack.servers), kafka)
        sensors = ending.enter_context(Writer(config, "sensors", key="sensor", key_groups=24, standbys=1))
        hourly = ending.enter_context(Writer(config, "hourly", key=("city", "sensor"), map_key="hour", key_groups=4))
        hours = [{"hour": BEGIN + timedelta(hours=hour), "max": hour / 2, "note": HOSTILE} for hour in range(60)]
        hourly.write([{"city": "oslo", "sensor": "s/1", **hour} for hour in hours])
        _write(sensors, 0)
        make_topics(kafka, {_ORDERS: 1}, LONG_SECONDS)
        stack.start_feeder()
        stopping = threading.Event()
        writing = threading.Thread(target=_go_on, args=(sensors, kafka, stopping))
        writing.start()
        ending.callback(writing.join)
        ending.callback(stopping.set)
        yield stack


def _go_on(sensors: Writer, kafka: str, stopping: threading.Event) -> None:
    epoch = 1
    with closing(Producer({"bootstrap.servers": kafka})) as producer:
        while not stopping.wait(1.0):
            _write(sensors, epoch)
            for number in range(8):
                producer.produce(_ORDERS, json.dumps({"customer": f"c{number}", "amount": epoch}))
            producer.poll(0)
            epoch += 1


def _write(sensors: Writer, epoch: int) -> None:
    sensors.write(
        [
            {"sensor": f"sensor-{number}", "celsius": number + epoch % 10 / 10, "big": BIG - epoch, "name": HOSTILE}
            for number in range(40)
        ]
    )
