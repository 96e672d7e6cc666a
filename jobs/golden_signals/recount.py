"""Measures the records again, with all durations kept and sorted, to compare what readers get.

Imports nothing of the job, of its sketch, nor Spark.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from jobs.json_records import fields_of

RELATIVE_ERROR = 0.01

_MINUTE_MS = 60_000
_LONGEST_US = 86_400_000_000
_END_OF_TIME_MS = 4_102_444_800_000
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_NO_NAMES = ("true", "false", "null")
_NUMBERS = ("duration", "status", "cpu", "memory")
_TYPES: Mapping[str, type] = {"service": str, **dict.fromkeys(("time", *_NUMBERS), int)}
# Of means and the like, for how a reader's floating point may round.
_ROUNDING = 1e-9

ServiceMinute = tuple[str, int]
"""A service, and the minute's start in milliseconds since 1970."""


@dataclass
class Measured:
    """All that a service had in a minute."""

    durations_us: list[int] = field(default_factory=list)
    errors: int = 0
    cpu_permille: list[int] = field(default_factory=list)
    memory_permille: list[int] = field(default_factory=list)

    def wrong(self, answer: Mapping[str, float | None]) -> list[str]:
        """The names of the fields that are not as they should be."""
        exact, tolerance = dict(self._exact()), {f"p{percent}_ms": RELATIVE_ERROR for percent in (50, 90, 99)}
        return sorted(
            {*exact, *answer}
            - {
                name
                for name, expected in exact.items()
                if name in answer and _agree(answer[name], expected, tolerance.get(name, 0.0) + _ROUNDING)
            }
        )

    def _exact(self) -> Iterator[tuple[str, float | None]]:
        durations, number = sorted(self.durations_us), len(self.durations_us)
        yield "requests", number
        yield "per_second", number / 60
        yield "errors", self.errors
        yield "error_ratio", self.errors / number if number else None
        yield "mean_ms", sum(durations) / number / 1000 if number else None
        for percent in (50, 90, 99):
            yield f"p{percent}_ms", durations[percent * (number - 1) // 100] / 1000 if number else None
        yield "max_ms", durations[-1] / 1000 if number else None
        samples = len(self.cpu_permille)
        cpu = sum(self.cpu_permille) / samples / 1000 if samples else None
        memory = max(self.memory_permille) / 1000 if samples else None
        yield "cpu_mean", cpu
        yield "cpu_max", max(self.cpu_permille) / 1000 if samples else None
        yield "memory_max", memory
        yield "saturation", None if cpu is None or memory is None else max(cpu, memory)


def _agree(found: float | None, expected: float | None, relative: float) -> bool:
    if found is None or expected is None:
        return found is expected
    return math.isclose(found, expected, rel_tol=0, abs_tol=abs(expected) * relative)


def recount(values: Iterable[bytes | None]) -> dict[ServiceMinute, Measured]:
    """By service and minute, what the state should say; the order of the records doesn't matter."""
    measured: defaultdict[ServiceMinute, Measured] = defaultdict(Measured)
    for value in values:
        if (record := fields_of(value, _TYPES)) is None:
            continue
        service, time_ms = record["service"], record["time"]
        duration, status, cpu, memory = (record[name] for name in _NUMBERS)
        if service is None or not _NAME.fullmatch(service) or service in _NO_NAMES:
            continue
        if not _within(time_ms, 0, _END_OF_TIME_MS - 1):
            continue
        key = service, time_ms - time_ms % _MINUTE_MS
        if _within(duration, 0, _LONGEST_US) and _within(status, 100, 599) and cpu is memory is None:
            measured[key].durations_us.append(duration)
            measured[key].errors += status >= 500
        elif _within(cpu, 0, 1000) and _within(memory, 0, 1000) and duration is status is None:
            measured[key].cpu_permille.append(cpu)
            measured[key].memory_permille.append(memory)
    return dict(measured)


def _within(value: int | None, lowest: int, highest: int) -> bool:
    return value is not None and lowest <= value <= highest
