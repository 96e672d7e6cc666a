"""From when events were sent, and when answers showed them, to ages, percentiles and their spread. Pure."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Sighting = tuple[int, int]
"""The number of the newest probe that an answer showed, and when, in nanoseconds."""

FLOOR = "bare"


class Age(NamedTuple):
    """Of one probe: when it was sent, in nanoseconds, and how long it then took until an answer showed it."""

    sent_ns: int
    ms: float


def ages(first: int, sent_ns: Sequence[int], seen: Sequence[Sighting]) -> tuple[list[Age], int]:
    """Of each probe: from when it was sent to the first answer that shows it or a later one.

    Args:
        first: The number of the first probe; those that follow count on by one.
        sent_ns: When each was sent, by the clock of the sightings.
        seen: In the order of time.

    Returns:
        The ages, in the order of the probes; and how many probes no answer showed.
    """
    numbers = [number for number, _ in seen]
    found: list[Age] = []
    for number, at in enumerate(sent_ns, first):
        place = bisect.bisect_left(numbers, number)
        if place == len(seen):
            return found, len(sent_ns) - len(found)
        found.append(Age(at, (seen[place][1] - at) / 1e6))
    return found, 0


def percentile(values: Sequence[float], part: float) -> float:
    """The lowest value that at least this part of all values does not exceed."""
    ranked = sorted(values)
    count = -(-len(ranked) * round(part * 1000) // 1000)
    return ranked[max(0, count - 1)]


def percentiles(of: Sequence[Age]) -> dict[str, float]:
    """p50, p99 and the longest, in milliseconds."""
    values = [age.ms for age in of]
    found = {"p50_ms": percentile(values, 0.5), "p99_ms": percentile(values, 0.99), "max_ms": max(values)}
    return {name: round(value, 2) for name, value in found.items()}


def longest_by_batch(of: Sequence[Age], starts_ns: Sequence[int]) -> list[float]:
    """The longest age among the probes of each batch, in milliseconds: those sent since its start, before the next's.

    Args:
        starts_ns: When batches began, ascending. What was sent before the first of them counts nowhere.
    """
    longest: dict[int, float] = {}
    for age in of:
        batch = bisect.bisect_right(starts_ns, age.sent_ns) - 1
        if batch >= 0:
            longest[batch] = max(longest.get(batch, 0.0), age.ms)
    return [round(longest[batch], 1) for batch in sorted(longest)]


def spread(values: Sequence[float], digits: int = 2) -> dict[str, float]:
    """The minimum, the median and the maximum of what several turns gave, rounded."""
    found = {"min": min(values), "median": statistics.median(values), "max": max(values)}
    return {name: round(value, digits) for name, value in found.items()}


def summaries(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By side and rate: the spread of the percentiles over its turns, and the ratio of the medians to the bare one's.

    A percentile of a summary is the median of what the turns had, and not one of all their probes together: one bad
    turn must not be most of the slow ones.
    """
    turns: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for result in results:
        turns.setdefault((result["side"], result["rate"]), []).append(result)
    lines = []
    for (side, rate), measured in turns.items():
        line: dict[str, Any] = {"benchmark": "realtime", "side": side, "rate": rate, "turns": len(measured)}
        for name in ("p50_ms", "p99_ms", "max_ms"):
            line[name] = spread([turn[name] for turn in measured])
        for name in ("p50_ms", "p99_ms") if side != FLOOR and (FLOOR, rate) in turns else ():
            floor = statistics.median(turn[name] for turn in turns[FLOOR, rate])
            line[f"{name[:3]}_to_{FLOOR}"] = round(line[name]["median"] / floor, 1)
        line["samples"] = sum(turn["samples"] for turn in measured)
        line["unseen"] = sum(turn["unseen"] for turn in measured)
        line["load"] = spread([turn["load"] for turn in measured], 1)
        lines.append(line)
    return lines
