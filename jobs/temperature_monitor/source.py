"""`python -m jobs.temperature_monitor.source`: real and made-up readings into a topic; settings: KEYHOLE_READINGS_*.

Seattle and San Francisco are a year of hourly temperatures (NOAA's for 2010, which vega_datasets ships in Fahrenheit),
an hour every tenth of a second, over and over. Beside them a fleet of synthetic sensors walks at random, and a probe
only rises, so that a reader can tell which of its readings an answer shows.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import signal
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Mapping

from confluent_kafka import KafkaError, Message, Producer
from vega_datasets import local_data

from keyhole import logs
from keyhole.config import ReadingsConfig, load
from keyhole.errors import KafkaUnreachable, KeyholeError

# The probe has a partition of its own, so that who looks for its readings need not read all the others.
PROBE, PROBE_PARTITION = "probe", 0
PARTITIONS = 3

CITIES = ("seattle", "san-francisco")

_TICK_SECONDS = 0.02
_HOUR_SECONDS = 0.1
_SEED = 20_100_101
_FLUSH_SECONDS = 10
_FULL_PAUSE_SECONDS = 0.5
_FULL_ATTEMPTS = 60

_log = logging.getLogger(__name__)

Reading = tuple[str, str, float]
"""Sensor, time (ISO 8601), degrees Celsius."""


def celsius(fahrenheit: float) -> float:
    """To a tenth of a degree, as it was measured."""
    return round((fahrenheit - 32) / 1.8, 1)


def recorded() -> Iterator[list[Reading]]:
    """The two cities' readings, hour by hour, without end. Their local time is told as if it were UTC."""
    frames = dict(zip(CITIES, (local_data.seattle_temps(), local_data.sf_temps()), strict=True))
    hours = [
        [(city, stamp.isoformat() + "Z", celsius(temperature)) for city, stamp, temperature in of_hour]
        for of_hour in zip(
            *([(city, row.date, row.temp) for row in frame.itertuples()] for city, frame in frames.items()),
            strict=True,
        )
    ]
    return itertools.cycle(hours)


def fleet(sensors: int) -> Iterator[Reading]:
    """Each sensor in turn, a random step from where it was; the same for every run."""
    draw = random.Random(_SEED)  # noqa: S311 - made-up temperatures, no secrets
    temperatures = [draw.uniform(5, 25) for _ in range(sensors)]
    for number in itertools.cycle(range(sensors)):
        temperatures[number] += draw.gauss(0, 0.3)
        yield f"sensor-{number}", _now(), round(temperatures[number], 2)


def probe() -> Iterator[Reading]:
    """Rises by a hundredth of a degree each time."""
    for count in itertools.count(1):
        yield PROBE, _now(), round(count / 100, 2)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def partition_of(sensor: str) -> int:
    """Where a sensor's readings go: always to the same partition, so that their order is kept."""
    if sensor == PROBE:
        return PROBE_PARTITION
    return 1 + zlib.crc32(sensor.encode()) % (PARTITIONS - 1)


class Sender:
    """An idempotent producer to one topic. Blocks while its queue is full."""

    def __init__(self, config: ReadingsConfig) -> None:
        self._topic = config.topic
        self._producer = Producer(
            {"bootstrap.servers": config.bootstrap_servers, "enable.idempotence": True, "linger.ms": 2}
        )
        self.delivered = 0

    def send(self, reading: Reading) -> None:
        sensor, moment, temperature = reading
        value = json.dumps({"sensor": sensor, "time": moment, "temperature": temperature})
        for _ in range(_FULL_ATTEMPTS):
            try:
                self._producer.produce(
                    self._topic, value, partition=partition_of(sensor), on_delivery=self._on_delivery
                )
            except BufferError:
                self._producer.poll(_FULL_PAUSE_SECONDS)
            else:
                return
        raise KafkaUnreachable("Kafka has taken no readings for a while; check that its broker runs")

    def poll(self) -> None:
        """Takes note of what was delivered."""
        self._producer.poll(0)

    def flush(self) -> None:
        """Waits for what is under way, for a while."""
        self._producer.flush(_FLUSH_SECONDS)

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.delivered += 1
        else:
            _log.warning("a reading was not delivered", extra={"error": error.str()})


def run(config: ReadingsConfig, stopped: threading.Event) -> int:
    """Sends until it is stopped, then waits for what is under way; returns how many readings Kafka has.

    Raises:
        KafkaUnreachable: The queue was full for half a minute.
    """
    sender = Sender(config)
    cities, sensors, rising = recorded(), fleet(config.sensors), probe()
    began, hours, of_fleet = time.monotonic(), 0, 0
    while not stopped.wait(_TICK_SECONDS):
        elapsed = time.monotonic() - began
        due = min(int(elapsed * config.rate), of_fleet + config.rate)  # a stop still comes through after a long pause
        for reading in itertools.islice(sensors, due - of_fleet):
            sender.send(reading)
        of_fleet = due
        while hours * _HOUR_SECONDS <= elapsed:
            for reading in (*next(cities), next(rising)):
                sender.send(reading)
            hours += 1
        sender.poll()
    sender.flush()
    return sender.delivered


def main(environ: Mapping[str, str]) -> int:
    """Runs until SIGTERM. Returns the process's exit code."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        config = load(ReadingsConfig, environ)
        logs.configure(config.log_level)
        delivered = run(config, stopped)
    except KeyholeError as error:
        print(f"readings: {error.message}", file=sys.stderr)  # noqa: T201 - for a person
        return 1
    _log.info("stopped", extra={"delivered": delivered})
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
