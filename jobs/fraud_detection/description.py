"""The job fraud_detection as the command line, the demo and the tests know it. Imports no Spark."""

from __future__ import annotations

from datetime import UTC, datetime

from jobs.fraud_detection.config import FraudDetectionConfig, PaymentsConfig
from keyhole.demo.described_jobs import JobDescription

JOB = JobDescription(
    name="fraud_detection",
    application="fraud-detection",
    shows=(
        "rules and aggregations that change while it runs, as broadcast states that each batch reads; "
        "timers; three states in one epoch; a state fed by SQL that begins with a table"
    ),
    settings=FraudDetectionConfig,
    source_settings=PaymentsConfig,
    states=("aggregations", "alerts", "recent", "rules", "spent", "totals"),
    # As the source has its beginning.
    probe=("totals", ("spent-per-hour", "account-0", datetime(2026, 11, 21, tzinfo=UTC))),
    example="scan fraud-detection/alerts account-0",
    path="fraud-detection/alerts/account-0",
    topic="payments",
    partitions=1,
    more_topics={"RULES_TOPIC": "rules", "AGGREGATIONS_TOPIC": "aggregations"},
    light_load={"rate": 20},
)
