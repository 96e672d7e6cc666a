"""The states' formulas once more, with dicts: what a reading is, and what readings make. Imports nothing of the job.

What depends on how Spark cut the stream into batches is in its own log of them: which records each has, its watermark,
and which epoch of the thresholds it reads.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from jobs.json_records import fields_of

_HOUR_MS = 3_600_000
_MAX_AHEAD_US = 60_000_000
_MAX_SENSOR_BYTES = 128
_ALERTS_KEPT = 100
_TIME = re.compile(r"(19[7-9]|20\d)\d-\d\d-\d\dT([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?Z", re.ASCII)

Thresholds = Mapping[str, float]
"""By sensor, the ratio."""


class Reading(NamedTuple):
    """Sensor, milliseconds since 1970, degrees Celsius."""

    sensor: str
    time_ms: int
    temperature: float


class Alert(NamedTuple):
    """One alert, with the fields that readers get, in their order."""

    time_ms: int
    last: float
    new: float
    ratio: float
    threshold: float


@dataclass
class Sensor:
    """All readings of a sensor since it was first seen, or last forgotten, in their order."""

    temperatures: list[float] = field(default_factory=list)
    time_ms: int = 0

    @property
    def mean(self) -> float:
        """The mean of the temperatures, correctly rounded (math.fsum)."""
        return math.fsum(self.temperatures) / len(self.temperatures)


def reading_of(value: bytes | str | None, recorded_ms: int) -> Reading | None:
    """The reading in a record, by the job's README; None where it is none.

    Args:
        recorded_ms: Kafka's timestamp of the record.
    """
    record = fields_of(value, {"sensor": str, "temperature": float, "time": str})
    if record is None or not _is_sensor(record["sensor"]) or not _is_finite(record["temperature"]):
        return None
    at = _moment(record["time"] or "")
    if at is None:
        return None
    time_us = round(at.replace(microsecond=0).timestamp()) * 1_000_000 + at.microsecond
    if time_us > recorded_ms * 1000 + _MAX_AHEAD_US:
        return None
    return Reading(record["sensor"], time_us // 1000, record["temperature"])


def update_of(value: bytes | str | None) -> tuple[str, float] | None:
    """The sensor and the ratio in an update of thresholds; None where it is none."""
    record = fields_of(value, {"sensor": str, "ratio": float})
    if record is None or not _is_sensor(record["sensor"]) or not _is_finite(record["ratio"]):
        return None
    return record["sensor"], record["ratio"]


def _is_sensor(sensor: str | None) -> bool:
    return sensor is not None and 1 <= len(sensor.encode()) <= _MAX_SENSOR_BYTES


def _is_finite(number: float | None) -> bool:
    return number is not None and math.isfinite(number)


def _moment(time: str) -> datetime | None:
    try:
        return datetime.fromisoformat(time) if _TIME.fullmatch(time) else None
    except ValueError:  # the day doesn't exist
        return None


def thresholds_of(updates: Iterable[tuple[str, float]]) -> dict[str, float]:
    """What the updates make, in their order."""
    set_to: dict[str, float] = {}
    for sensor, ratio in updates:
        if ratio >= 1.0:
            set_to[sensor] = ratio
        else:
            set_to.pop(sensor, None)
    return set_to


def default_of(setting: str | None) -> float | None:
    """The default threshold that the job was given, by its README; None where there is none."""
    return ratio if setting is not None and (ratio := float(setting)) >= 1.0 else None


class Recount:
    """What the states should hold, batch by batch.

    Args:
        default_threshold: Of sensors without one of their own; None: these have no alerts.
    """

    def __init__(self, default_threshold: float | None = None) -> None:
        self._default = default_threshold
        self.sensors: dict[str, Sensor] = {}
        self.logged: defaultdict[str, list[Alert]] = defaultdict(list)

    def alerts(self) -> dict[str, list[Alert]]:
        """By sensor that ever had one, those that are kept."""
        return {sensor: logged[-_ALERTS_KEPT:] for sensor, logged in self.logged.items()}

    def take(self, readings: Iterable[Reading], watermark_ms: int, thresholds: Thresholds) -> None:
        """A batch.

        Args:
            readings: Its own, in the order of Kafka's partitions and offsets.
        """
        for sensor, time_ms, temperature in readings:
            if time_ms <= watermark_ms:
                continue
            threshold = thresholds.get(sensor, self._default)
            of = self.sensors.setdefault(sensor, Sensor())
            of.temperatures.append(temperature)
            of.time_ms = max(of.time_ms, time_ms)
            for last, new in itertools.pairwise(of.temperatures[-2:]):
                if threshold is not None and last > 0 and new >= 0:
                    jump = max(new / last, last / new) if new else math.inf
                    if jump > threshold:
                        self.logged[sensor].append(Alert(time_ms, last, new, jump, threshold))
        for sensor in [name for name, of in self.sensors.items() if of.time_ms + _HOUR_MS <= watermark_ms]:
            del self.sensors[sensor]
