"""A whole pipeline of real processes for a test: topic, state server, driver; to be killed, restarted and recounted."""

from __future__ import annotations

import json
import os
import random
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from keyhole import Client
from keyhole.errors import KeyholeError
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_state_server
from keyhole.steps import Step
from keyhole.testing.kill_points import KillPoints
from tests.support.counting_job import STATE

# Nothing takes this long on an idle machine; on a busy one starting Spark alone may take a minute.
PATIENCE_SECONDS = 600
EVENTS_PER_KILL = 300
_EVENTS_PER_EPOCH = 100

Recount = dict[str, tuple[int, int]]
"""By key: events, highest value."""


@dataclass
class Pipeline:
    """One application of its own. `close` ends all its processes."""

    directory: Path
    bootstrap_servers: str
    jars: Sequence[Path]
    mode: str = "update"
    application: str = field(default_factory=lambda: f"counting-{uuid.uuid4().hex[:8]}")
    expected: Recount = field(default_factory=dict)
    server: Child | None = None
    driver: Child | None = None

    def __post_init__(self) -> None:
        self.topic = f"events-{self.application}"
        (self.port,) = free_ports(1)
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        admin.create_topics([NewTopic(self.topic, 2, 1)])[self.topic].result(30)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def produce(self, events: int, keys: int = 40, seed: int = 7) -> None:
        """Random events, counted here as they are sent."""
        draw = random.Random(seed)
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "enable.idempotence": True})
        for _ in range(events):
            key, value = f"key-{draw.randrange(keys)}", draw.randrange(1_000_000)
            producer.produce(self.topic, json.dumps({"k": key, "v": value}))
            count, highest = self.expected.get(key, (0, -1))
            self.expected[key] = count + 1, max(highest, value)
        assert producer.flush(30) == 0

    def start_server(self, environ: Mapping[str, str] | None = None, *, killable: bool = False) -> Child:
        self.server = start_state_server(
            "server-0",
            self.port,
            bootstrap_servers=self.bootstrap_servers,
            directory=self.directory,
            environ={**os.environ, **(environ or {})},
            module="tests.support.killable_state_server" if killable else "services.state_server",
        )
        return self.server

    def start_driver(self, environ: Mapping[str, str] | None = None, per_trigger: int = _EVENTS_PER_EPOCH) -> Child:
        options = {
            "topic": self.topic,
            "bootstrap_servers": self.bootstrap_servers,
            "checkpoint": str(self.directory / "checkpoint"),
            "directory": str(self.directory),
            "jars": [str(jar) for jar in self.jars],
            "mode": self.mode,
            "per_trigger": per_trigger,
        }
        settings = {
            "COUNTING_JOB": json.dumps(options),
            "KEYHOLE_JOB_APPLICATION": self.application,
            "KEYHOLE_JOB_SERVERS": self.address,
            "KEYHOLE_JOB_BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "KEYHOLE_JOB_EPOCH_DEADLINE_SECONDS": "180",
        }
        command = [sys.executable, "-m", "tests.support.counting_job"]
        log = self.directory / "driver.log"
        self.driver = Child("driver", command, log, {**os.environ, **settings, **(environ or {})})
        return self.driver

    def kill_server_at(self, steps: Sequence[Step], environ: Mapping[str, str] | None = None) -> None:
        """The server is killed at each of the steps, every third epoch, while one driver goes on; at last one lives.

        The topic must have EVENTS_PER_KILL for each step, and as many again.
        """
        for number, step in enumerate(steps, 1):
            server = self.start_server({**(environ or {}), **self._killed(step, number)}, killable=True)
            if self.driver is None:
                self.start_driver()
            self.await_(self._server_has_ended, f"death of the server at {step}")
            assert self._marker(step).exists(), server.output()[-3000:]
        self.start_server(environ)

    def kill_driver_at(self, steps: Sequence[Step]) -> None:
        """The same with the driver, which is started again each time; at last one lives."""
        for number, step in enumerate(steps, 1):
            driver = self.start_driver(self._killed(step, number))
            assert driver.wait(PATIENCE_SECONDS) is not None, step
            assert self._marker(step).exists(), driver.output()[-3000:]
        self.start_driver()

    def _killed(self, step: Step, number: int) -> dict[str, str]:
        epoch = number * EVENTS_PER_KILL // _EVENTS_PER_EPOCH
        return KillPoints.environ(step, epoch, self._marker(step))

    def _server_has_ended(self) -> bool:
        return self.server is None or self.server.exit_code is not None

    def _marker(self, step: Step) -> Path:
        return self.directory / f"killed-{step}"

    def answers(self) -> tuple[Recount, int]:
        """What the server says of every expected key now, and how many entries it holds in all."""
        with Client(self.address, timeout=5) as client:
            keys = sorted(self.expected)
            found = client.get_many(self.application, STATE, keys)
            held = [holding for server in client.status() for holding in server.holdings]
            entries = sum(holding.entries for holding in held)
        values = {k: (a.value.events, a.value.highest) for k, a in zip(keys, found, strict=True) if a.found}
        return values, entries

    def await_recount(self) -> None:
        """Waits until every key is answered as counted here, and nothing else is there."""
        self.await_(lambda: self.answers() == (self.expected, len(self.expected)), "the recount")

    def await_(self, done: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        last: Any = None
        while True:
            try:
                if done():
                    return
            except KeyholeError as error:
                last = error
            if self.driver is not None and self.driver.exit_code is not None:
                raise AssertionError(f"the driver ended while waiting for {what}:\n{self.driver.output()[-4000:]}")
            if time.monotonic() > until:
                log = self.driver.output()[-3000:] if self.driver else ""
                raise AssertionError(f"no {what} within {PATIENCE_SECONDS} s ({last}); driver:\n{log}")
            time.sleep(0.2)

    def close(self) -> None:
        for child in (self.driver, self.server):
            if child is not None:
                child.kill()
