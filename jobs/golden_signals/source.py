"""A made-up request log, the same for the same seed, and the real load of the machine that it runs on.

`python -m jobs.golden_signals.source` sends them to a topic; settings: KEYHOLE_REQUESTS_*.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from jobs.golden_signals.config import RequestsConfig
from jobs.golden_signals.description import JOB
from keyhole.local.job_sources import Sender, due, run_source

MINUTE_MS = 60_000
PARTITIONS = 3
_SEED = 20_160_406
_LOAD_SECONDS = 1.0


class Service(NamedTuple):
    """What a service is like on a good day.

    Attributes:
        share: Of all requests.
        median_ms, spread: Of its durations, whose logarithms are normal, with this standard deviation.
        failures: Which part of its requests fails.
    """

    name: str
    share: float
    median_ms: float
    spread: float
    failures: float


SERVICES = (
    Service("web", 0.6, 12.0, 0.5, 0.001),
    Service("search", 0.25, 45.0, 0.8, 0.004),
    Service("checkout", 0.1, 120.0, 0.6, 0.01),
    Service("reports", 0.05, 900.0, 1.2, 0.02),
)
# In every tenth minute one of them, in turn, has a bad time.
INCIDENT_EVERY_MINUTES = 10
INCIDENT_SLOWER, INCIDENT_FAILURES = 8.0, 0.2


class Request(NamedTuple):
    """A line of the log: when it ended, how long it took, and with which HTTP status."""

    service: str
    time_ms: int
    duration_us: int
    status: int


class Load(NamedTuple):
    """How full a machine was: 0 to 1000."""

    cpu_permille: int
    memory_permille: int


@dataclass(frozen=True)
class Shape:
    """How many requests come in a second of the log's time, on average."""

    per_second: float = 50.0


def requests(seed: int, begin_ms: int, shape: Shape) -> Iterator[Request]:
    """The log, without end, in the order of time."""
    draw = random.Random(seed)  # noqa: S311 - made-up requests, no secrets
    shares = [service.share for service in SERVICES]
    elapsed_ms = 0.0
    for _ in itertools.count():
        elapsed_ms += draw.expovariate(shape.per_second) * 1000
        (service,) = draw.choices(SERVICES, shares)
        slower, failures = 1.0, service.failures
        if _in_incident(int(elapsed_ms // MINUTE_MS)) == service.name:
            slower, failures = INCIDENT_SLOWER, INCIDENT_FAILURES
        duration_us = round(1000 * slower * draw.lognormvariate(math.log(service.median_ms), service.spread))
        chance = draw.random()
        status = 503 if chance < failures else 404 if chance > 0.99 else 200
        yield Request(service.name, begin_ms + int(elapsed_ms), duration_us, status)


def _in_incident(minute: int) -> str | None:
    if minute % INCIDENT_EVERY_MINUTES != INCIDENT_EVERY_MINUTES - 1:
        return None
    return SERVICES[minute // INCIDENT_EVERY_MINUTES % len(SERVICES)].name


class Machine:
    """This one. The processors' load is that since the last look, so the first look should not come at once."""

    def __init__(self) -> None:
        psutil.cpu_percent()  # what it returns the first time means nothing

    def load(self) -> Load:
        """The load since the last look, in thousandths. Does not block."""
        return Load(_permille(psutil.cpu_percent()), _permille(psutil.virtual_memory().percent))


def _permille(percent: float) -> int:
    return min(1000, max(0, round(percent * 10)))


def record(request: Request) -> bytes:
    """The request as the job takes it from Kafka."""
    service, time_ms, duration_us, status = request
    return json.dumps({"service": service, "time": time_ms, "duration": duration_us, "status": status}).encode()


def load_records(load: Load, time_ms: int, services: Iterable[Service] = SERVICES) -> list[bytes]:
    """The load as the job takes it from Kafka: of each service, since all of them run on the machine."""
    cpu, memory = load
    return [
        json.dumps({"service": service.name, "time": time_ms, "cpu": cpu, "memory": memory}).encode()
        for service in services
    ]


def malformed(request: Request) -> bytes:
    """The request as it comes out of a broken pipe."""
    return record(request)[:-2]


def feed(config: RequestsConfig, sender: Sender, stopped: threading.Event) -> None:
    """Sends until it is stopped; the log's time is the clock's. Raises KafkaUnreachable."""
    draw = random.Random(_SEED)  # noqa: S311 - made-up requests, no secrets
    coming = requests(_SEED, round(time.time() * 1000), Shape(per_second=config.rate))
    machine, next_load = Machine(), time.monotonic() + _LOAD_SECONDS
    for more in due(config.rate, stopped):
        for request in itertools.islice(coming, more):
            sender.send(malformed(request) if draw.random() < config.malformed else record(request))
        if time.monotonic() >= next_load:
            next_load += _LOAD_SECONDS
            for of_service in load_records(machine.load(), round(time.time() * 1000)):
                sender.send(of_service)
        sender.poll()


def topics(config: RequestsConfig) -> dict[str, int]:
    """What it sends to, and how many partitions each has."""
    return {config.topic: PARTITIONS}


if __name__ == "__main__":
    sys.exit(run_source("requests", RequestsConfig, feed, topics, JOB.kinds))
