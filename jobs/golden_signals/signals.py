"""The golden signals of a service in a minute: a user-defined aggregation. Pure Python, without Spark.

Percentiles are of a DDSketch (Masson, Rim and Lee, VLDB 2019): it counts durations in bins that grow by a constant
factor. So a percentile is within RELATIVE_ERROR of the exact one, whatever the durations are. Two sketches are merged
by adding their bins' counts, which is exact: what comes out doesn't depend on the order of rows and of merges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Protocol

import msgspec
from ddsketch.mapping import LogarithmicMapping
from ddsketch.store import DenseStore

RELATIVE_ERROR = 0.01

RESULT = (
    "requests bigint, per_second double, errors bigint, error_ratio double, "
    "mean_ms double, p50_ms double, p90_ms double, p99_ms double, max_ms double, "
    "cpu_mean double, cpu_max double, memory_max double, saturation double"
)

_MINUTE_SECONDS = 60
_US_PER_MS = 1000
_PERMILLE = 1000
_LAYOUT = 1

Result = dict[str, int | float | None]


class Measurement(Protocol):
    """A row: either a request, or a sample of the load; what is of the other one is None."""

    @property
    def duration_us(self) -> int | None:
        """How long the request took."""

    @property
    def failed(self) -> bool | None:
        """Whether it was the service's fault that it did not succeed."""

    @property
    def cpu_permille(self) -> int | None:
        """How busy the processors were."""

    @property
    def memory_permille(self) -> int | None:
        """How much of the memory was taken."""


class Durations:
    """How long requests took, in microseconds, as a sketch, made of DDSketch's parts. Counts are whole numbers."""

    def __init__(self) -> None:
        self._zeros = 0
        self._bins = DenseStore()
        self._mapping = LogarithmicMapping(RELATIVE_ERROR)

    def add(self, duration_us: int) -> None:
        """One more; 0 or more."""
        if duration_us == 0:
            self._zeros += 1
        else:
            self._bins.add(self._mapping.key(duration_us))

    def add_all(self, other: Durations) -> None:
        """All of the other, which stays as it is."""
        self._zeros += other._zeros
        self._bins.merge(other._bins)

    def percentile(self, percent: int) -> float | None:
        """The duration of rank floor(percent * (n - 1) / 100) of n, from 0, within RELATIVE_ERROR; None of none."""
        number = self._zeros + int(self._bins.count)
        if number == 0:
            return None
        rank = percent * (number - 1) // 100
        if rank < self._zeros:
            return 0.0
        return float(self._mapping.value(self._bins.key_at_rank(rank - self._zeros)))

    def counts(self) -> Counts:
        """All that there is to know, the same for the same durations."""
        bins = list(enumerate(map(int, self._bins.bins), start=self._bins.offset))
        used = list(dropwhile(_is_empty, reversed(list(dropwhile(_is_empty, bins)))))[::-1]
        return Counts(self._zeros, used[0][0] if used else 0, [count for _, count in used])

    @classmethod
    def of(cls, counts: Counts) -> Durations:
        """Durations that give these counts, and go on from them."""
        made = cls()
        made._zeros = counts.zeros
        for number, count in enumerate(counts.bins, start=counts.first_bin):
            if count:
                made._bins.add(number, count)
        return made


def _is_empty(numbered: tuple[int, int]) -> bool:
    return numbered[1] == 0


class Counts(msgspec.Struct, array_like=True, frozen=True):
    """A sketch as it is stored.

    Attributes:
        zeros: How many durations were 0, which is in no bin.
        first_bin: The number of the first bin; bin n holds what is above g**(n-1) and up to g**n, g = 1.01/0.99.
        bins: Their counts; neither the first nor the last is 0.
    """

    zeros: int
    first_bin: int
    bins: list[int]


@dataclass
class Accumulator:
    """What a service had in a minute. Sums are of whole numbers: they are exact, in any order."""

    requests: int = 0
    errors: int = 0
    duration_us: int = 0
    longest_us: int = 0
    samples: int = 0
    cpu_permille: int = 0
    cpu_highest: int = 0
    memory_highest: int = 0
    durations: Durations = field(default_factory=Durations)


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    layout: int
    numbers: tuple[int, int, int, int, int, int, int, int]
    durations: Counts


_decoder = msgspec.msgpack.Decoder(_Stored)


class GoldenSignals:
    """Throughput, errors, durations and saturation. An Aggregator, as keyhole.spark calls it."""

    commutative = True

    def create(self) -> Accumulator:
        return Accumulator()

    def add(self, accumulator: Accumulator, row: Measurement) -> Accumulator:
        """With one more row; changes the accumulator, and returns it."""
        if row.duration_us is not None:
            accumulator.requests += 1
            accumulator.errors += bool(row.failed)
            accumulator.duration_us += row.duration_us
            accumulator.longest_us = max(accumulator.longest_us, row.duration_us)
            accumulator.durations.add(row.duration_us)
        if row.cpu_permille is not None and row.memory_permille is not None:
            accumulator.samples += 1
            accumulator.cpu_permille += row.cpu_permille
            accumulator.cpu_highest = max(accumulator.cpu_highest, row.cpu_permille)
            accumulator.memory_highest = max(accumulator.memory_highest, row.memory_permille)
        return accumulator

    def merge(self, one: Accumulator, other: Accumulator) -> Accumulator:
        """What all rows of both would have given; changes neither."""
        durations = Durations()
        durations.add_all(one.durations)
        durations.add_all(other.durations)
        return Accumulator(
            requests=one.requests + other.requests,
            errors=one.errors + other.errors,
            duration_us=one.duration_us + other.duration_us,
            longest_us=max(one.longest_us, other.longest_us),
            samples=one.samples + other.samples,
            cpu_permille=one.cpu_permille + other.cpu_permille,
            cpu_highest=max(one.cpu_highest, other.cpu_highest),
            memory_highest=max(one.memory_highest, other.memory_highest),
            durations=durations,
        )

    def result(self, accumulator: Accumulator) -> Result:
        """What readers get; `RESULT` is its schema. None where nothing was measured."""
        return dict(_result(accumulator))

    def encode(self, accumulator: Accumulator) -> bytes:
        """As MessagePack: accumulators of the same rows have the same bytes."""
        of = accumulator
        numbers = (
            *(of.requests, of.errors, of.duration_us, of.longest_us),
            *(of.samples, of.cpu_permille, of.cpu_highest, of.memory_highest),
        )
        return msgspec.msgpack.encode(_Stored(_LAYOUT, numbers, of.durations.counts()))

    def decode(self, data: bytes) -> Accumulator:
        """The accumulator that was encoded.

        Raises:
            ValueError: It was encoded by a later layout, or is none.
        """
        stored = _decoder.decode(data)
        if stored.layout != _LAYOUT:
            raise ValueError(f"the accumulator has layout {stored.layout}; this job knows layout {_LAYOUT} only")
        return Accumulator(*stored.numbers, durations=Durations.of(stored.durations))


def _result(of: Accumulator) -> Iterator[tuple[str, int | float | None]]:
    yield "requests", of.requests
    yield "per_second", of.requests / _MINUTE_SECONDS
    yield "errors", of.errors
    yield "error_ratio", of.errors / of.requests if of.requests else None
    yield "mean_ms", of.duration_us / of.requests / _US_PER_MS if of.requests else None
    for percent in (50, 90, 99):
        percentile = of.durations.percentile(percent)
        yield f"p{percent}_ms", None if percentile is None else percentile / _US_PER_MS
    yield "max_ms", of.longest_us / _US_PER_MS if of.requests else None
    cpu_mean = of.cpu_permille / of.samples / _PERMILLE if of.samples else None
    memory = of.memory_highest / _PERMILLE if of.samples else None
    yield "cpu_mean", cpu_mean
    yield "cpu_max", of.cpu_highest / _PERMILLE if of.samples else None
    yield "memory_max", memory
    yield "saturation", None if cpu_mean is None or memory is None else max(cpu_mean, memory)
