"""`python -m jobs.temperature_monitor.source`: real and made-up readings into a topic; settings: KEYHOLE_READINGS_*.

Seattle and San Francisco are a recorded year of hourly temperatures (vega_datasets ships it, in Fahrenheit), an hour
every tenth of a second and over and over. Beside them a fleet of synthetic sensors walks at random, and a probe only
rises, so that a reader can tell which of its readings an answer shows.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping

from confluent_kafka import Producer
from vega_datasets import local_data

from keyhole import logs
from keyhole.config import ReadingsConfig, load
from keyhole.errors import KeyholeError

PROBE = "probe"
CITIES = ("seattle", "san-francisco")

_TICK_SECONDS = 0.02
_HOUR_SECONDS = 0.1
_SEED = 20_100_101

Reading = tuple[str, str, float]
"""Sensor, time (ISO 8601), degrees Celsius."""


def celsius(fahrenheit: float) -> float:
    """To a tenth of a degree, as it was measured."""
    return round((fahrenheit - 32) / 1.8, 1)


def recorded() -> Iterator[list[Reading]]:
    """The two cities' readings, hour by hour, without end."""
    frames = dict(zip(CITIES, (local_data.seattle_temps(), local_data.sf_temps()), strict=True))
    hours = [
        [(city, stamp.isoformat() + "Z", celsius(temperature)) for city, stamp, temperature in of_hour]
        for of_hour in zip(
            *([(city, row.date, row.temp) for row in frame.itertuples()] for city, frame in frames.items()),
            strict=False,  # one of them lacks an hour
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


def run(config: ReadingsConfig, stopped: threading.Event) -> int:
    """Sends until it is stopped; returns how many readings were sent."""
    producer = Producer({"bootstrap.servers": config.bootstrap_servers, "enable.idempotence": True, "linger.ms": 2})
    sent = 0

    def send(reading: Reading) -> None:
        nonlocal sent
        sensor, moment, temperature = reading
        value = json.dumps({"sensor": sensor, "time": moment, "temperature": temperature})
        while True:
            try:
                producer.produce(config.topic, value)
            except BufferError:
                producer.poll(0.1)
            else:
                sent += 1
                return

    cities, sensors, rising = recorded(), fleet(config.sensors), probe()
    began, next_hour, of_fleet = time.monotonic(), 0.0, 0
    while not stopped.wait(_TICK_SECONDS):
        elapsed = time.monotonic() - began
        while of_fleet < elapsed * config.rate:
            send(next(sensors))
            of_fleet += 1
        while next_hour <= elapsed:
            for reading in (*next(cities), next(rising)):
                send(reading)
            next_hour += _HOUR_SECONDS
        producer.poll(0)
    producer.flush(10)
    return sent


def main(environ: Mapping[str, str]) -> int:
    """Returns the process's exit code."""
    try:
        config = load(ReadingsConfig, environ)
    except KeyholeError as error:
        print(f"readings: {error.message}", file=sys.stderr)  # noqa: T201 - for a person
        return 1
    logs.configure(config.log_level)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    run(config, stopped)
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
