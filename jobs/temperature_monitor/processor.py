"""What the job keeps per sensor, and what it does with a reading: Spark's transformWithState, row by row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import StructType

from keyhole.spark.exposed import ExposedValue

HOUR_MS = 3_600_000

# The state that readers find, and what `init` declares it as.
SENSORS = "sensors"
_SENSORS = ExposedValue(
    StructType()
    .add("last", "double")
    .add("min", "double")
    .add("max", "double")
    .add("mean", "double")
    .add("readings", "long")
    .add("time_ms", "long")
)
EXPOSED: Mapping[str, ExposedValue] = {SENSORS: _SENSORS}

OUTPUT = "sensor string, reading bigint, time_ms bigint, last double, new double, ratio double"
"""The processor's own rows: a jump each, from one reading to the next, of which some are alerts."""


class Statistics(NamedTuple):
    """What is kept of a sensor's readings.

    Attributes:
        last: The newest by their order in Kafka, degrees Celsius; as are min, max, mean.
        time_ms: The highest event time, milliseconds since 1970.
    """

    last: float
    min: float
    max: float
    mean: float
    readings: int
    time_ms: int

    def with_reading(self, temperature: float, time_ms: int) -> Statistics:
        """The statistics with one reading more."""
        readings = self.readings + 1
        return Statistics(
            temperature,
            min(self.min, temperature),
            max(self.max, temperature),
            # Not the difference: of two large readings it is infinite.
            self.mean * (self.readings / readings) + temperature / readings,
            readings,
            max(self.time_ms, time_ms),
        )


_NONE = Statistics(0.0, math.inf, -math.inf, 0.0, 0, 0)


def ratio(last: float, new: float) -> float:
    """How far a reading jumps, either way: the larger by the smaller; infinite where the new one is zero, or nearly.

    1.0 where the last one is not above zero, which has no ratio, or the new one is below, where both ways are negative.
    """
    if last <= 0 or new < 0:
        return 1.0
    low, high = sorted((last, new))
    return high / low if low else math.inf


class Sensors(StatefulProcessor):
    """Event time, by sensor; a reading of a time at or before the watermark is too late, and dropped.

    A sensor has one timer at a time: a newer reading doesn't move it, but when it expires, it is set again where there
    was one. So a batch costs each of its sensors two calls of Spark's, one to read and one to write.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Spark calls it once per task."""
        self._handle = handle
        self._sensors = handle.getValueState(SENSORS, _SENSORS.schema)

    def handleInputRows(self, key: tuple[str], rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        """Takes the readings of one sensor: kafka_partition, kafka_offset, time_ms, temperature; in any order."""
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        readings = sorted(
            (row.kafka_partition, row.kafka_offset, row.time_ms, row.temperature)
            for row in rows
            if row.time_ms > watermark_ms
        )
        if not readings:
            return
        stored = self._sensors.get()
        of = _NONE if stored is None else Statistics(*stored)
        for _, _, time_ms, temperature in readings:
            before, of = of, of.with_reading(temperature, time_ms)
            if before.readings and (jump := ratio(before.last, temperature)) > 1.0:
                yield Row(
                    sensor=key[0],
                    reading=of.readings,
                    time_ms=time_ms,
                    last=before.last,
                    new=temperature,
                    ratio=jump,
                )
        self._sensors.update(tuple(of))
        if stored is None:
            self._handle.registerTimer(of.time_ms + HOUR_MS)

    def handleExpiredTimer(
        self, key: tuple[str], timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """Forgets the sensor, where an hour has passed since its newest reading."""
        stored = self._sensors.get()
        assert stored is not None
        forgotten_ms = Statistics(*stored).time_ms + HOUR_MS
        if forgotten_ms <= timerValues.getCurrentWatermarkInMs():
            self._sensors.clear()
        else:
            self._handle.registerTimer(forgotten_ms)
        return iter(())
