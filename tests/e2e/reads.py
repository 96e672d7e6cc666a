"""What a reader in the cluster has seen: answers, epochs and errors by time, and the gaps between them."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Gaps:
    """Of a stretch of time.

    Attributes:
        reads: How many were answered.
        longest_seconds: Between two answers that followed each other, however many reads failed meanwhile.
        errors: By reason.
        said: What the last error of each reason said.
        wrong: What readers were told and can't be so.
        roles: How many answers came from owners, and how many from standbys.
        epoch_seconds: The longest time without an answer of a newer epoch.
    """

    reads: int
    longest_seconds: float
    errors: dict[str, int]
    said: dict[str, str]
    wrong: tuple[str, ...]
    roles: dict[str, int]
    epoch_seconds: float


def parsed(log: str) -> list[dict[str, Any]]:
    """The lines of reader.py; one that is cut off at the end of a log is left out."""
    lines = []
    for line in log.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def gaps(lines: Sequence[dict[str, Any]], begin: float, end: float) -> Gaps:
    """Of the reads that began between two times, in seconds since 1970. The stretch's own ends count as answers."""
    chosen = [line for line in lines if begin <= line["at"] < end]
    answered = [line for line in chosen if line.get("found")]
    ends = [line["at"] + line["seconds"] for line in answered]
    # A read may take as long as it likes: what counts is when its answer came.
    times = sorted([begin, *(moment for moment in ends if moment < end), end])
    return Gaps(
        reads=len(answered),
        longest_seconds=_longest(times),
        errors=dict(Counter(line["error"] for line in chosen if "error" in line)),
        said={line["error"]: line["why"] for line in chosen if "error" in line},
        wrong=tuple(line["wrong"] for line in chosen if line.get("wrong")),
        roles=dict(Counter(line["role"] for line in answered)),
        epoch_seconds=_longest([begin, *_newer(answered, end), end]),
    )


def _newer(answered: Sequence[dict[str, Any]], end: float) -> Iterator[float]:
    """When each epoch was first seen that is newer than all before it."""
    highest = min((line["epoch"] for line in answered), default=0)
    for line in answered:
        if line["epoch"] > highest and (moment := line["at"] + line["seconds"]) < end:
            highest = line["epoch"]
            yield moment


def _longest(times: Sequence[float]) -> float:
    """Between two that follow each other, in seconds."""
    return round(max((after - before for before, after in itertools.pairwise(times)), default=0.0), 3)
