"""`python -m jobs.temperature_monitor.verify`: counts both topics again, and asks the proxy for every key."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence

import pyarrow as pa
from confluent_kafka import Message

from jobs.temperature_monitor.recount import (
    Alert,
    Reading,
    Recount,
    Sensor,
    default_of,
    reading_of,
    thresholds_of,
    update_of,
)
from keyhole import Answer, Client
from keyhole.demo.batch_logs import BatchLogs
from keyhole.demo.recount import RecountVerdict, VerifiedJob, asked, entries, main, records_before, topic_ends, unkept

# As the job has it, of which nothing here may know.
APPLICATION, STATE, ALERTS, THRESHOLDS = "temperature-monitor", "sensors", "alerts", "thresholds"
THRESHOLDS_TOPIC, DEFAULT_THRESHOLD = "THRESHOLDS_TOPIC", "DEFAULT_THRESHOLD"

_CATCH_UP_SECONDS = 60.0
_POLL_SECONDS = 0.1
_MEANS_AGREE = 1e-9


@dataclasses.dataclass
class Counted:
    """What the recount makes of all that the subject has read.

    Attributes:
        seen: All sensors that there ever were.
        watched: Those of them that may have alerts: that ever had a threshold, or lost one; all, if there is a default.
        read_right: Each batch has read the thresholds that had been set by the epoch that it says it has read.
        updated: All that ever had a threshold, or lost one.
        records: Of the readings' topic.
        rejected: By topic, how many are no reading, and no update.
        unkept: Dead letters that are missing, or too many.
    """

    recount: Recount
    seen: set[str]
    watched: set[str]
    read_right: bool
    thresholds: dict[str, float]
    updated: set[str]
    records: int
    rejected: dict[str, int]
    unkept: int


def check(subject: VerifiedJob, client: Client) -> RecountVerdict:
    """Every key, and every alert, as of one epoch.

    The job may have one batch more, without records, for the watermark's sake: then it is all asked again.
    """
    readings = subject.batches
    updates = subject.beside(THRESHOLDS)
    # The second query, too, takes all that was sent.
    updates.await_ends(topic_ends(subject.bootstrap_servers, subject.more_topics[THRESHOLDS_TOPIC]), _CATCH_UP_SECONDS)
    until = time.monotonic() + _CATCH_UP_SECONDS
    while time.monotonic() < until:
        newest = readings.newest()
        if newest == readings.begun():
            verdict = compare(client, count(subject, readings, updates, newest), newest + 1)
            if newest == readings.begun():
                return verdict
        time.sleep(_POLL_SECONDS)
    raise TimeoutError("the job goes on, though nothing is sent any more")


def count(subject: VerifiedJob, readings: BatchLogs, updates: BatchLogs, newest: int) -> Counted:
    """Batch by batch, up to the newest."""
    of_updates = dataclasses.replace(subject, topic=subject.more_topics[THRESHOLDS_TOPIC])
    messages = _in_order(subject, readings.ends(newest))
    changes = _in_order(of_updates, updates.ends(updates.newest()))
    of_records = {_place(message): reading_of(message.value(), message.timestamp()[1]) for message in messages}
    of_changes = {_place(message): update_of(message.value()) for message in changes}

    def thresholds(epoch: int) -> dict[str, float]:
        ends = updates.ends(epoch - 1) if epoch else {}
        read = [change for (partition, offset), change in of_changes.items() if offset < ends.get(partition, 0)]
        return thresholds_of(change for change in read if change is not None)

    default = default_of(subject.settings.get(DEFAULT_THRESHOLD))
    recount, seen = Recount(default), set[str]()
    begins, read_right = dict[int, int](), True
    for batch in range(newest + 1):
        ends = readings.ends(batch)
        watermark_ms = readings.watermark_ms(batch)
        epoch, read = readings.broadcast(f"{APPLICATION}.{THRESHOLDS}", batch)
        read_right &= thresholds_in(read) == thresholds(epoch)
        taken = list(_between(of_records, begins, ends))
        recount.take(taken, watermark_ms, thresholds(epoch))
        seen |= {reading.sensor for reading in taken}
        begins = ends
    rejected: set[tuple[int | None, int | None]] = {place for place, reading in of_records.items() if reading is None}
    refused: set[tuple[int | None, int | None]] = {place for place, change in of_changes.items() if change is None}
    updated = {change[0] for change in of_changes.values() if change is not None}
    return Counted(
        recount,
        seen,
        seen & updated if default is None else seen,
        read_right,
        thresholds(updates.newest() + 1),
        updated,
        len(messages),
        {subject.topic: len(rejected), of_updates.topic: len(refused)},
        unkept(subject, rejected) + unkept(of_updates, refused),
    )


def compare(client: Client, counted: Counted, epoch: int) -> RecountVerdict:
    """With what readers get, all of it as of the epoch."""
    recount = counted.recount
    sensors = asked(client, APPLICATION, STATE, {sensor: sensor for sensor in counted.seen}, epoch)
    agreed = [
        answer.epoch == epoch and agrees(answer, recount.sensors.get(sensor)) for sensor, answer in sensors.items()
    ]
    # The logs of sensors that must have none are asked for, too.
    kept = {name: list[Alert]() for name in sorted(counted.watched)} | recount.alerts()
    for sensor, alerts in kept.items():
        scanned = client.scan(APPLICATION, ALERTS, sensor, min_epoch=epoch)
        agreed.append([Alert(*(value[name] for name in Alert._fields)) for value in scanned.values] == alerts)
    thresholds = asked(client, APPLICATION, THRESHOLDS, {sensor: sensor for sensor in counted.updated}, 0)
    for sensor, answer in thresholds.items():
        ratio = answer.value.ratio if answer.found else None
        agreed.append(ratio == counted.thresholds.get(sensor))
    agreed.append(counted.read_right)
    surplus = entries(client, APPLICATION, STATE) - len(recount.sensors)
    return RecountVerdict(
        epoch,
        keys=len(agreed),
        agreed=sum(agreed),
        surplus=max(0, surplus),
        events=counted.records,
        rejected=counted.rejected,
        unkept=counted.unkept,
    )


def agrees(answer: Answer, of: Sensor | None) -> bool:
    """The state has the sensor as it was counted; the mean to nine digits, as it depends on how it is added up."""
    if of is None or not answer.found:
        return of is None and not answer.found
    value, temperatures = answer.value, of.temperatures
    exact = (value.last, value.min, value.max, value.readings, value.time_ms)
    return exact == (temperatures[-1], min(temperatures), max(temperatures), len(temperatures), of.time_ms) and abs(
        value.mean - of.mean
    ) <= _MEANS_AGREE * max(abs(of.mean), 1.0)


def _in_order(subject: VerifiedJob, ends: dict[int, int]) -> Sequence[Message]:
    return sorted(records_before(subject.bootstrap_servers, subject.topic, ends), key=_place)


def _place(message: Message) -> tuple[int, int]:
    """Where the record is: its partition and offset."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def _between(
    records: dict[tuple[int, int], Reading | None], begins: dict[int, int], ends: dict[int, int]
) -> Iterator[Reading]:
    """The readings of a batch, in the order of partitions and offsets."""
    for partition in sorted(ends):
        for offset in range(begins.get(partition, 0), ends[partition]):
            if (reading := records.get((partition, offset))) is not None:
                yield reading


def thresholds_in(read: bytes) -> dict[str, float]:
    """What a batch has read."""
    return {row["sensor"]: row["ratio"] for row in pa.ipc.open_stream(read).read_all().to_pylist()}


if __name__ == "__main__":
    sys.exit(main(check))
