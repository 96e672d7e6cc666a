"""`python -m jobs.temperature_monitor.source`: real and made-up readings into a topic; settings: KEYHOLE_READINGS_*.

Seattle and San Francisco are a year of hourly temperatures (NOAA's for 2010, which vega_datasets ships in Fahrenheit),
an hour every tenth of a second, over and over. Beside them a fleet of synthetic sensors walks at random, and a probe
only rises, so that a reader sees which of its readings an answer shows. All readings say that they were made when they
are sent: the cities' years would make the watermark run away from the others.

Into a second topic go thresholds of a few sensors: some at once, and then a change every two seconds. Among them are
some that are broken.
"""

from __future__ import annotations

import csv
import importlib.metadata
import itertools
import json
import random
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime

from jobs.temperature_monitor.config import ReadingsConfig
from jobs.temperature_monitor.description import JOB
from keyhole.local.job_sources import Sender, due, run_source

# The probe has a partition of its own, so that who looks for its readings need not read all the others.
PROBE, PROBE_PARTITION = "probe", 0
PARTITIONS = 3

CITIES = ("seattle", "san-francisco")
_FILES = ("seattle-temps.csv", "sf-temps.csv")

WATCHED = (*CITIES, *(f"sensor-{number}" for number in range(10)))
"""The sensors that have thresholds, at times."""

_HOUR_SECONDS = 0.1
_UPDATE_SECONDS = 2.0
_FIRST_RATIO = 1.02
# Of another number than the sensors, so that each gets all of them; 0 takes a threshold away.
_LATER_RATIOS = (1.01, 1.05, 0.0, 1.1, 1.0)
# Updates are too few for a part of them to be broken at random in a short run: one at once, and then one in 13 minutes,
# which is less than what KeyholeRejectedRecords fires at.
_BROKEN_AFTER, _BROKEN_EVERY = 4, 400
_SEED = 20_100_101

Reading = tuple[str, float]
"""Sensor, degrees Celsius."""

Update = tuple[str, float]
"""Sensor, ratio."""


def celsius(fahrenheit: float) -> float:
    """To a tenth of a degree, as it was measured."""
    return round((fahrenheit - 32) / 1.8, 1)


def recorded() -> Iterator[list[Reading]]:
    """The two cities' readings, hour by hour, without end."""
    hours = zip(*map(_measured, _FILES), strict=True)
    return itertools.cycle([list(zip(CITIES, of_hour, strict=True)) for of_hour in hours])


def _measured(file: str) -> Iterator[float]:
    """A city's temperatures, in degrees Celsius."""
    # Of the package's file: the package imports pandas, which takes most of a second of a start.
    path = importlib.metadata.distribution("vega_datasets").locate_file(f"vega_datasets/_data/{file}")
    with open(str(path), newline="") as lines:  # noqa: PTH123 - a SimplePath has no open
        for row in csv.DictReader(lines):
            yield celsius(float(row["temp"]))


def fleet(sensors: int) -> Iterator[Reading]:
    """Each sensor in turn, a random step from where it was; the same for every run."""
    draw = random.Random(_SEED)  # noqa: S311 - made-up temperatures, no secrets
    temperatures = [draw.uniform(5, 25) for _ in range(sensors)]
    for number in itertools.cycle(range(sensors)):
        temperatures[number] += draw.gauss(0, 0.3)
        yield f"sensor-{number}", round(temperatures[number], 2)


def probe() -> Iterator[Reading]:
    """Rises by a hundredth of a degree each time."""
    for count in itertools.count(1):
        yield PROBE, round(count / 100, 2)


def updates() -> Iterator[Update]:
    """Thresholds: of all watched sensors, and then changes of one after the other, without end."""
    yield from ((sensor, _FIRST_RATIO) for sensor in WATCHED)
    yield from zip(itertools.cycle(WATCHED), itertools.cycle(_LATER_RATIOS), strict=False)


def partition_of(sensor: str) -> int:
    """Where a sensor's readings go: always to the same partition, so that their order is kept."""
    if sensor == PROBE:
        return PROBE_PARTITION
    return 1 + zlib.crc32(sensor.encode()) % (PARTITIONS - 1)


def record(reading: Reading, moment: datetime) -> bytes:
    """The reading, made at a moment of UTC, as the job takes it from Kafka."""
    sensor, temperature = reading
    stamp = moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return json.dumps({"sensor": sensor, "time": stamp, "temperature": temperature}).encode()


def malformed(reading: Reading, moment: datetime) -> bytes:
    """The reading as it comes out of a broken pipe."""
    return record(reading, moment)[:-2]


def update_record(update: Update) -> bytes:
    """The update of a threshold as the job takes it from Kafka."""
    sensor, ratio = update
    return json.dumps({"sensor": sensor, "ratio": ratio}).encode()


def malformed_update(update: Update, number: int) -> bytes:
    """The update as three kinds of mistakes make it, in turn: cut short, with words for a number, of no sensor."""
    sensor, ratio = update
    if number % 3 == 0:
        return update_record(update)[:-2]
    if number % 3 == 1:
        return json.dumps({"sensor": sensor, "ratio": f"{ratio:g} times"}).encode()
    return json.dumps({"sensor": None, "ratio": ratio}).encode()


def update_records(*, broken: bool) -> Iterator[list[bytes]]:
    """Each update's record, and after a few of them, if `broken`, another one that is none."""
    for number, update in enumerate(updates(), 1):
        records = [update_record(update)]
        if broken and number % _BROKEN_EVERY == _BROKEN_AFTER:
            records.append(malformed_update(update, number // _BROKEN_EVERY))
        yield records


def feed(config: ReadingsConfig, sender: Sender, stopped: threading.Event) -> None:
    """Sends until it is stopped. Raises KafkaUnreachable."""
    draw = random.Random(_SEED)  # noqa: S311 - made-up faults, no secrets
    cities, sensors, rising = recorded(), fleet(config.sensors), probe()
    changes = update_records(broken=config.malformed > 0)
    thresholds = Sender(config.bootstrap_servers, config.thresholds_topic)
    for value in itertools.chain.from_iterable(itertools.islice(changes, len(WATCHED))):
        thresholds.send(value)
    began, hours, changed = time.monotonic(), 0, 0
    for more in due(config.rate, stopped):
        readings = list(itertools.islice(sensors, more))
        while hours * _HOUR_SECONDS <= time.monotonic() - began:
            readings += (*next(cities), next(rising))
            hours += 1
        moment = datetime.now(UTC)
        for reading in readings:
            broken = reading[0] != PROBE and draw.random() < config.malformed
            sender.send((malformed if broken else record)(reading, moment), partition_of(reading[0]))
        if changed * _UPDATE_SECONDS <= time.monotonic() - began:
            for value in next(changes):
                thresholds.send(value)
            changed += 1
        sender.poll()
        thresholds.poll()
    thresholds.flush()


def topics(config: ReadingsConfig) -> dict[str, int]:
    """What it sends to, and how many partitions each has."""
    return {config.topic: PARTITIONS, config.thresholds_topic: 1}


if __name__ == "__main__":
    sys.exit(run_source("readings", ReadingsConfig, feed, topics, JOB.kinds))
