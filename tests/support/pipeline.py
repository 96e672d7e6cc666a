"""A whole pipeline of real processes for a test: topic, state server, driver; to be killed, restarted and recounted."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from keyhole import Client
from keyhole.errors import KeyholeError
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_state_server
from keyhole.model.read import Answer
from keyhole.protocol.failpoints import Step
from keyhole.testing.kill_points import KillPoints
from tests.support.counting_job import MADE_IN_TASKS, STATE
from tests.support.topics import make_topic
from tests.support.waiting import LONG_SECONDS

# Nothing takes this long on an idle machine; on a busy one starting Spark alone may take a minute.
PATIENCE_SECONDS = 600
# Most looks ask for all keys, by a client of their own, of processes that have more to do.
_LOOK_SECONDS = 0.5
_EVENTS_PER_KILL = 200
_EVENTS_PER_EPOCH = 100

Recount = dict[str, tuple[int, int, int]]
"""By key: events, highest value, sum."""


@dataclass
class Pipeline:
    """One application of its own. `close` ends all its processes.

    Its state is a sum, unless another mode of tests.support.counting_job is wanted: what is applied twice shows.

    Attributes:
        standbys: Of each key group, where there are more servers than one: only of the sums.
        checkpoint: Empty: in the directory.
        spark: Settings of Spark's, beside those of a session here.
    """

    directory: Path
    bootstrap_servers: str
    jars: Sequence[Path]
    mode: str = "reducing"
    standbys: int = 0
    checkpoint: str = ""
    spark: Mapping[str, str] = field(default_factory=dict)
    application: str = field(default_factory=lambda: f"counting-{uuid.uuid4().hex[:8]}")
    expected: Recount = field(default_factory=dict)
    server: Child | None = None
    driver: Child | None = None
    _kills: int = 0
    _recounted_epoch: int = 0

    def __post_init__(self) -> None:
        self.topic = f"events-{self.application}"
        (self.port,) = free_ports(1)
        make_topic(self.bootstrap_servers, self.topic, 2)

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
            count, highest, total = self.expected.get(key, (0, -1, 0))
            self.expected[key] = count + 1, max(highest, value), total + value
        assert producer.flush(LONG_SECONDS) == 0

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

    def start_driver(
        self,
        environ: Mapping[str, str] | None = None,
        per_trigger: int = _EVENTS_PER_EPOCH,
        name: str = "driver",
    ) -> Child:
        options = {
            "topic": self.topic,
            "bootstrap_servers": self.bootstrap_servers,
            "checkpoint": self.checkpoint or str(self.directory / "checkpoint"),
            "spark": dict(self.spark),
            "directory": str(self.directory),
            "jars": [str(jar) for jar in self.jars],
            "mode": self.mode,
            "standbys": self.standbys,
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
        log = self.directory / f"{name}.log"
        self.driver = Child(name, command, log, {**os.environ, **settings, **(environ or {})})
        return self.driver

    def kill_server_at(self, steps: Sequence[Step], environ: Mapping[str, str] | None = None) -> None:
        """The server is killed at each of the steps, every second epoch, while one driver goes on; at last one lives.

        Sends the events that this takes.
        """
        if self.server is not None:
            self.server.kill()
        for environ_at, marker in self._kill_points(steps):
            server = self.start_server({**(environ or {}), **environ_at}, killable=True)
            if self.driver is None:
                self.start_driver()
            self.await_(self._server_has_ended, f"death of the server ({marker.name})")
            assert marker.exists(), server.output()[-3000:]
        self.start_server(environ)

    def kill_driver_at(self, steps: Sequence[Step]) -> None:
        """The same with the driver, which is started again each time; at last one lives."""
        if self.driver is not None:
            self.driver.kill()
        for environ_at, marker in self._kill_points(steps):
            driver = self.start_driver(environ_at)
            assert driver.wait(PATIENCE_SECONDS) is not None, marker.name
            assert marker.exists(), driver.output()[-3000:]
        self.start_driver()

    def _kill_points(self, steps: Sequence[Step]) -> list[tuple[dict[str, str], Path]]:
        """What kills a process at each of the steps, a few epochs after the one before; and what it leaves there."""
        self.produce(_EVENTS_PER_KILL * (len(steps) + 1))
        points = []
        for number, step in enumerate(steps, 1):
            self._kills += 1
            marker = self.directory / f"killed-{self._kills}-{step}"
            epoch = self._recounted_epoch + number * _EVENTS_PER_KILL // _EVENTS_PER_EPOCH
            points.append((KillPoints.environ(step, epoch, marker), marker))
        return points

    def _server_has_ended(self) -> bool:
        return self.server is None or self.server.exit_code is not None

    @property
    def states(self) -> Sequence[str]:
        """Those that the job has, all with the same values."""
        return (STATE, MADE_IN_TASKS) if self.mode == "merging" else (STATE,)

    def answers(self, state: str = STATE) -> tuple[Recount, int]:
        """What the server says of every expected key now, and how many entries it holds in all."""
        with Client(self.address, timeout=LONG_SECONDS) as client:
            keys = sorted(self.expected)
            found = client.get_many(self.application, state, keys)
            held = [holding for server in client.status() for holding in server.holdings]
            entries = sum(holding.entries for holding in held)
        return counted(keys, found), entries

    def await_recount(self) -> None:
        """Waits until every key of every state is answered as counted here, and nothing else is there."""
        wanted = self.expected, len(self.expected) * len(self.states)
        self.await_(lambda: all(self.answers(state) == wanted for state in self.states), "the recount")
        with Client(self.address, timeout=PATIENCE_SECONDS) as client:
            answers = client.get_many(self.application, STATE, sorted(self.expected))
        self._recounted_epoch = max(answer.epoch for answer in answers)

    def published(self) -> dict[int, int]:
        """By epoch, of how many events the job has written elsewhere as it was complete."""
        return {int(path.name): int(path.read_text()) for path in (self.directory / "published").iterdir()}

    def await_idle(self) -> None:
        """Waits for the recount, and until the last epoch is complete: readers have it a moment before that."""
        self.await_recount()
        events = sum(events for events, _, _ in self.expected.values())
        self.await_(lambda: sum(self.published().values()) >= events, "the end of the last epoch")

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
            time.sleep(_LOOK_SECONDS)

    def lose_store(self) -> None:
        """The server is killed, and its directory deleted."""
        assert self.server is not None
        self.server.kill()
        shutil.rmtree(self.directory / "server-0")

    def close(self) -> None:
        for child in (self.driver, self.server):
            if child is not None:
                child.kill()


def counted(keys: Sequence[str], answers: Sequence[Answer]) -> Recount:
    """What the answers say, of the keys that are there."""
    return {
        key: (of.value.events, of.value.highest, of.value.total)
        for key, of in zip(keys, answers, strict=True)
        if of.found
    }
