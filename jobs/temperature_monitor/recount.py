"""The state's formula once more, with a dict: what a reading is, and what readings make. Imports nothing of the job."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

Reading = tuple[str, float]
"""Sensor, degrees Celsius."""

Recount = dict[str, tuple[float, int]]
"""By sensor: highest temperature, number of readings."""

_MAX_SENSOR_BYTES = 128


def reading_of(value: bytes | str | None) -> Reading | None:
    """The reading in a record, by the job's README; None where it is none."""
    try:
        record = json.loads(value or b"")
        sensor, temperature = record["sensor"], record["temperature"]
        size = len(sensor.encode())
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if isinstance(temperature, bool) or not isinstance(temperature, int | float):
        return None
    if not math.isfinite(temperature) or not 1 <= size <= _MAX_SENSOR_BYTES:
        return None
    return sensor, float(temperature)


def recount(values: Iterable[bytes | str | None]) -> tuple[Recount, int]:
    """What the records make, and how many there were, readings or not."""
    counted: Recount = {}
    events = 0
    for value in values:
        events += 1
        reading = reading_of(value)
        if reading is not None:
            sensor, temperature = reading
            highest, number = counted.get(sensor, (-math.inf, 0))
            counted[sensor] = max(highest, temperature), number + 1
    return counted, events
