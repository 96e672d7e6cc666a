"""`python -m jobs.temperature_monitor.source`: real and made-up readings into a topic; settings: KEYHOLE_READINGS_*.

Seattle and San Francisco are a year of hourly temperatures (NOAA's for 2010, which vega_datasets ships in Fahrenheit),
an hour every tenth of a second, over and over. Beside them a fleet of synthetic sensors walks at random, and a probe
only rises, so that a reader can tell which of its readings an answer shows.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import threading
import time
import zlib
from collections.abc import Iterator

from vega_datasets import local_data

from keyhole.config import ReadingsConfig
from keyhole.local.sources import Sender, due, run_source

# The probe has a partition of its own, so that who looks for its readings need not read all the others.
PROBE, PROBE_PARTITION = "probe", 0
PARTITIONS = 3

CITIES = ("seattle", "san-francisco")

_HOUR_SECONDS = 0.1
_SEED = 20_100_101

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


def record(reading: Reading) -> bytes:
    """The reading as the job takes it from Kafka."""
    sensor, moment, temperature = reading
    return json.dumps({"sensor": sensor, "time": moment, "temperature": temperature}).encode()


def feed(config: ReadingsConfig, sender: Sender, stopped: threading.Event) -> None:
    """Sends until it is stopped. Raises KafkaUnreachable."""
    cities, sensors, rising = recorded(), fleet(config.sensors), probe()
    began, hours = time.monotonic(), 0
    for more in due(config.rate, stopped):
        readings = list(itertools.islice(sensors, more))
        while hours * _HOUR_SECONDS <= time.monotonic() - began:
            readings += (*next(cities), next(rising))
            hours += 1
        for reading in readings:
            sender.send(record(reading), partition_of(reading[0]))
        sender.poll()


if __name__ == "__main__":
    sys.exit(run_source("readings", ReadingsConfig, feed))
