"""The settings of the job golden_signals, and of its source: each beside what every job, and every source, has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from keyhole.config import PART, SourceConfig, TopicJobConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenSignalsConfig(TopicJobConfig):
    """The job golden_signals: what every job that reads one topic has, and no more."""

    PREFIX: ClassVar[str] = "KEYHOLE_GOLDEN_SIGNALS_"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsConfig(SourceConfig):
    """The source of the job golden_signals' request log.

    Attributes:
        malformed: Which part of the log's records is broken.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_REQUESTS_"

    malformed: float = field(default=0.001, metadata=PART)
