"""The settings of the job fraud_detection, and of its source: each beside what every job, and every source, has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from keyhole.config import PART, SourceConfig, TopicJobConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FraudDetectionConfig(TopicJobConfig):
    """The job fraud_detection.

    Attributes:
        checkpoint: Spark's checkpoint location; the other queries have theirs beside it, as <checkpoint>-rules,
            <checkpoint>-aggregations and <checkpoint>-spent.
        rules_topic: Where the rules are published, in one partition.
        aggregations_topic: Where the aggregations are, likewise.
        history: A folder of Parquet, as Spark reads it, with the payments of before the topic, which the state `spent`
            begins with. Empty: there were none.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_FRAUD_DETECTION_"

    rules_topic: str
    aggregations_topic: str
    history: str = ""
    max_offsets_per_trigger: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentsConfig(SourceConfig):
    """The source of the job fraud_detection's payments, rules and aggregations. The rate is that of the payments.

    Attributes:
        rules_topic: Where the rules go.
        aggregations_topic: Where the aggregations go.
        accounts: How many there are.
        speed: How many of the payments' seconds pass in one.
        frauds: Which part of the payments is a small one that a large one follows within a minute.
        malformed: Which part of the payments is broken.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_PAYMENTS_"

    rules_topic: str
    aggregations_topic: str
    rate: int = 100
    accounts: int = 200
    speed: int = 60
    frauds: float = field(default=0.01, metadata=PART)
    malformed: float = field(default=0.001, metadata=PART)
