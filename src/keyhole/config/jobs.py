"""The configuration of the jobs that come along, and of their sources: each beside what every job has."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

LOCAL, CLUSTER = "local", "cluster"
MOST = "most"
"""In the metadata of a whole number's field: what it may be at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicJobConfig:
    """What each of the jobs here has beside JobConfig: they all read one topic.

    Attributes:
        topic: Where its records are.
        checkpoint: Spark's checkpoint location.
        directory: For what Spark writes beside it.
        jars: Spark's Kafka connector, by path; and that for S3, where the checkpoint is at s3a://.
        max_offsets_per_trigger: Bounds an epoch, the first one after a long pause above all.
        shuffle_partitions: Of Spark; a divisor of the job's 16 key groups. As many as there are cores for the job: each
            costs a batch time of its own, where Spark keeps state above all. Stays with the checkpoint.
        spark: "local": Spark runs on this machine alone. "cluster": as the spark-defaults.conf in SPARK_CONF_DIR says.
    """

    PREFIX: ClassVar[str]

    topic: str
    checkpoint: str
    directory: Path
    jars: tuple[str, ...] = ()
    max_offsets_per_trigger: int = 50_000
    shuffle_partitions: int = 2
    spark: str = LOCAL
    log_level: str = "INFO"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureMonitorConfig(TopicJobConfig):
    """The job temperature_monitor.

    Attributes:
        thresholds_topic: Of the updates of thresholds, of one partition. Their query's checkpoint is beside the
            other one, with `-thresholds` behind its name.
        default_threshold: The ratio above which a jump is an alert where its sensor has no threshold of its own; below
            1.0: there are no alerts of such a sensor. May change with a new run.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_TEMPERATURE_MONITOR_"

    thresholds_topic: str
    default_threshold: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TweetImpressionsConfig(TopicJobConfig):
    """The job tweet_impressions."""

    PREFIX: ClassVar[str] = "KEYHOLE_TWEET_IMPRESSIONS_"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """What each of the jobs' sources has.

    Attributes:
        rate: Records per second.
    """

    PREFIX: ClassVar[str]

    topic: str
    bootstrap_servers: str
    rate: int = 1000
    log_level: str = "INFO"


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
    malformed: float = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class TweetsConfig(SourceConfig):
    """The source of the job tweet_impressions' events.

    Attributes:
        tweets: How many there are.
        events_per_hour: Of event time; at the rate of 1000, 20,000 make an hour pass in 20 s.
        too_late: Which part of the events comes 3 to 5 hours late, once 5 hours have gone by: their hour is closed.
        malformed: Which part of the records is no event.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_TWEETS_"

    tweets: int = 1000
    events_per_hour: int = 20_000
    too_late: float = 0.002
    malformed: float = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenSignalsConfig(TopicJobConfig):
    """The job golden_signals."""

    PREFIX: ClassVar[str] = "KEYHOLE_GOLDEN_SIGNALS_"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsConfig(SourceConfig):
    """The source of the job golden_signals' request log.

    Attributes:
        malformed: Which part of the log's records is broken.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_REQUESTS_"

    malformed: float = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class VitalSignsConfig(TopicJobConfig):
    """The job vital_signs.

    Attributes:
        files: Where the closed blobs' files are: a folder that all of Spark's executors have, or s3://bucket/path
            (s3a:// is the same), which they reach by AWS_* (docs/kubernetes.md).
        blob_seconds: How long a blob is, up to an hour. May change with a new run.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_VITAL_SIGNS_"

    files: str
    blob_seconds: int = field(default=60, metadata={MOST: 3_600})
    max_offsets_per_trigger: int = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksConfig(SourceConfig):
    """The source of the job vital_signs' chunks. The rate is each pulse wave's samples per second, from 1 to 500.

    Attributes:
        patients: Two signals, and so two chunks per second, of each.
        speed: How many of the signals' seconds pass in one.
        malformed: Which part of the records is no chunk.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_CHUNKS_"

    rate: int = 200
    patients: int = 20
    speed: int = 10
    malformed: float = 0.001


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
    frauds: float = 0.01
    malformed: float = 0.001
