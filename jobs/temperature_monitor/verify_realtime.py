"""`python -m jobs.temperature_monitor.verify_realtime`: counts the readings again, and asks the proxy for every sensor.

All that Spark has committed is in the updates topic, and answers are asked for that hold all of this. So a reading that
was sent twice is seen, if it counts twice.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Set

from jobs.temperature_monitor.recount import Sensor, reading_of
from keyhole import Answer, Client
from keyhole.demo.recount import RecountVerdict, VerifiedJob, asked, entries, main, records_before, topic_ends

# As the job has it, of which nothing here may know; the topic by docs/updates.md.
APPLICATION, STATE = "temperature-monitor", "sensors"
UPDATES_TOPIC = f"keyhole.{APPLICATION}.{STATE}.updates"

_CATCH_UP_SECONDS = 60.0
_POLL_SECONDS = 0.2
_TOTALS_AGREE = 1e-9

_Place = tuple[int, int]
"""Partition and offset of a record."""


def check(subject: VerifiedJob, client: Client) -> RecountVerdict:
    """Every sensor, as of all updates that there are."""
    sensors, rejected, records = count(subject)
    applied = topic_ends(subject.bootstrap_servers, UPDATES_TOPIC)
    answers = asked(client, APPLICATION, STATE, {sensor: sensor for sensor in sensors}, applied)
    agreed = sum(agrees(answer, sensors[sensor]) for sensor, answer in answers.items())
    until = time.monotonic() + _CATCH_UP_SECONDS
    # What was refused is kept, and what was applied is counted as held, with the owner's next commit.
    while True:
        unkept = len(rejected ^ refused(subject.bootstrap_servers))
        held = entries(client, APPLICATION, STATE)
        if (not unkept and held == len(sensors)) or time.monotonic() > until:
            break
        time.sleep(_POLL_SECONDS)
    return RecountVerdict(
        subject.epoch,
        keys=len(sensors),
        agreed=agreed,
        surplus=max(0, held - len(sensors)),
        events=records,
        rejected={subject.topic: len(rejected)},
        unkept=unkept,
    )


def count(subject: VerifiedJob) -> tuple[Mapping[str, Sensor], Set[_Place], int]:
    """What is to be kept of each sensor; which records are no reading; and how many records there are."""
    sensors: dict[str, Sensor] = {}
    rejected, records = set[_Place](), 0
    messages = records_before(subject.bootstrap_servers, subject.topic, subject.ends)
    # Those of a sensor are of one partition, and come in its order.
    for message in messages:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        records += 1
        reading = reading_of(message.value(), message.timestamp()[1])
        if reading is None:
            rejected.add((partition, offset))
            continue
        of = sensors.setdefault(reading.sensor, Sensor())
        of.temperatures.append(reading.temperature)
        of.time_ms = max(of.time_ms, reading.time_ms)
    return sensors, rejected, records


def refused(bootstrap_servers: str) -> Set[_Place]:
    """Of which records the updates are among the dead letters."""
    topic = f"{UPDATES_TOPIC}.dead-letter"
    letters = records_before(bootstrap_servers, topic, topic_ends(bootstrap_servers, topic))
    updates = [json.loads(letter.value() or b"[]") for letter in letters]
    return {(partition, offset) for _, _, partition, offset, *_ in updates}


def agrees(answer: Answer, of: Sensor) -> bool:
    """The state has the sensor as it was counted; the total to nine digits, as it depends on how it is added up."""
    if not answer.found:
        return False
    value, temperatures = answer.value, of.temperatures
    exact = (value.last, value.min, value.max, value.readings, value.time_ms)
    return exact == (temperatures[-1], min(temperatures), max(temperatures), len(temperatures), of.time_ms) and abs(
        value.total - of.mean * len(temperatures)
    ) <= _TOTALS_AGREE * max(abs(of.mean), 1.0) * len(temperatures)


if __name__ == "__main__":
    sys.exit(main(check))
