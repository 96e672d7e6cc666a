"""The job golden_signals as the command line, the demo and the tests know it. Imports no Spark."""

from __future__ import annotations

from datetime import UTC, datetime

from jobs.golden_signals.config import GoldenSignalsConfig, RequestsConfig
from keyhole.demo.described_jobs import JobDescription

JOB = JobDescription(
    name="golden_signals",
    application="golden-signals",
    shows=(
        "a user's own aggregation, from rows as they come: throughput, errors, percentiles and "
        "saturation per service and minute"
    ),
    settings=GoldenSignalsConfig,
    source_settings=RequestsConfig,
    states=("golden_signals",),
    probe=("golden_signals", ("web", datetime(2026, 11, 21, tzinfo=UTC))),
    example="describe golden-signals/golden_signals",
    path="golden-signals/golden_signals",
    topic="requests",
    partitions=3,
    needs=("ddsketch",),
    source_needs=("psutil",),
)
