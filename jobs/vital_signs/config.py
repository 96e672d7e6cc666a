"""The settings of the job vital_signs, and of its source: each beside what every job, and every source, has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from keyhole.config import MOST, PART, SourceConfig, TopicJobConfig


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

    rate: int = field(default=200, metadata={MOST: 500})
    patients: int = 20
    speed: int = 10
    malformed: float = field(default=0.001, metadata=PART)
