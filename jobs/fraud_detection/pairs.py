"""Which payments of an account may be a small one and a large one that followed it, whatever the rules say. Pure.

Rules change while the job runs, and Spark keeps what it has seen before it hands anything out: so what is kept knows no
rules. Any payment may be a small one, any higher one within the next minute the large one.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS

Stored = tuple[int, int]
"""The time and the number of a payment."""


class Small(NamedTuple):
    """What a rule must know of a payment to decide whether it is small."""

    time_ms: int
    cents: int


def candidates(known: Mapping[Stored, int], new: Mapping[Stored, int]) -> Iterator[tuple[Stored, list[Small]]]:
    """The payments that may be large, with those before them that may be small; of each pair one half is new.

    Of the small ones of one second only the lowest counts: as rules begin at full seconds, a rule for which another one
    is small takes the lowest for small, too. So it is at most 61 for each, however busy the account is.

    Args:
        known, new: Payments of one account, by cents; new ones have just come.

    Returns:
        In the order of time; the small ones likewise.
    """
    everything = {**known, **new}
    of_all, of_new = _by_second(everything), _by_second(new)
    for at in sorted(everything):
        if smalls := list(_before(at[0], everything[at], of_all if at in new else of_new)):
            yield at, smalls


def _by_second(payments: Mapping[Stored, int]) -> Mapping[int, list[tuple[int, int]]]:
    """Cents and time, the lowest first."""
    found: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for (time_ms, _), cents in payments.items():
        insort(found[time_ms // SECOND_MS], (cents, time_ms))
    return found


def _before(time_ms: int, cents: int, by_second: Mapping[int, Iterable[tuple[int, int]]]) -> Iterator[Small]:
    for second in range((time_ms - MINUTE_MS) // SECOND_MS, (time_ms - 1) // SECOND_MS + 1):
        for low, at_ms in by_second.get(second, ()):
            if low >= cents:
                break
            # Of the first and the last second some are outside of the minute.
            if at_ms < time_ms <= at_ms + MINUTE_MS:
                yield Small(at_ms, low)
                break
