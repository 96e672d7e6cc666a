"""What the local stack starts of a job. It can be said without what a stack needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class JobSpec:
    """A job and its source, by module name, and their environments but for what the stack knows.

    Attributes:
        topics: Made anew, each with so many partitions.
        source_prefix: Of the names of the source's settings.
    """

    job: str
    source: str
    source_prefix: str
    topics: Mapping[str, int]
    job_environ: Mapping[str, str]
    source_environ: Mapping[str, str]
