"""The job temperature_monitor as the command line, the demo and the tests know it. Imports no Spark."""

from __future__ import annotations

from jobs.temperature_monitor.config import ReadingsConfig, TemperatureMonitorConfig
from keyhole.demo.described_jobs import JobDescription

JOB = JobDescription(
    name="temperature_monitor",
    application="temperature-monitor",
    shows=(
        "a `transformWithState` processor, thresholds that change at run time as a broadcast state, "
        "alerts as a list: the main job"
    ),
    settings=TemperatureMonitorConfig,
    source_settings=ReadingsConfig,
    states=("alerts", "sensors", "thresholds"),
    # As the source has it.
    probe=("sensors", "probe"),
    example="get temperature-monitor/sensors seattle sensor-0",
    path="temperature-monitor/sensors/seattle",
    topic="readings",
    partitions=3,
    more_topics={"THRESHOLDS_TOPIC": "thresholds"},
)
