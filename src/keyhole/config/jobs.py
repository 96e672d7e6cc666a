"""The settings that every job has which reads a topic, and those of every job's source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from keyhole.config.deployables import MOST

LOCAL, CLUSTER = "local", "cluster"
PART = MappingProxyType({MOST: 1.0})
"""The metadata of a number's field that says which part of something is so."""


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
