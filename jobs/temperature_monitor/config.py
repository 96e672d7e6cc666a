"""The settings of the job temperature_monitor, and of its source: each beside what every job, and every source, has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from keyhole.config import LEAST, PART, SourceConfig, TopicJobConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureMonitorConfig(TopicJobConfig):
    """The job temperature_monitor.

    Attributes:
        thresholds_topic: Of the updates of thresholds, of one partition. Their query's checkpoint is beside the
            other one, with `-thresholds` behind its name.
        default_threshold: The ratio above which a jump is an alert where its sensor has no threshold of its own; below
            1.0: there are no alerts of that sensor. May change with a new run.
        realtime_batch_seconds: Of jobs.temperature_monitor.realtime alone: how often Spark logs its offsets, 5 or more.
            What it has read since is read again after a crash; nothing is read between two batches.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_TEMPERATURE_MONITOR_"

    thresholds_topic: str
    default_threshold: float = 0.0
    realtime_batch_seconds: int = field(default=20, metadata={LEAST: 5})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingsConfig(SourceConfig):
    """The source of the job temperature_monitor's readings. The rate is the synthetic fleet's.

    Attributes:
        thresholds_topic: Of the updates of thresholds.
        sensors: Of the synthetic fleet.
        malformed: Which part of the records is no reading; above 0, some of the updates are none either.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_READINGS_"

    thresholds_topic: str
    sensors: int = 1000
    malformed: float = field(default=0.001, metadata=PART)
