"""How old a reading is when a reader can first see it: from when it was sent to the first answer that shows it."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence

from keyhole import Answer
from keyhole.demo.recount import records_before, topic_ends

RECENT_SECONDS = 30.0
_MOST_AGES = 10_000

FreshnessSample = tuple[float, float]
"""Of the probe, whose temperature only rises: temperature, milliseconds since 1970."""


class Sightings:
    """When each temperature of the probe was first shown. Temperatures and moments rise."""

    def __init__(self) -> None:
        self.first_shown: list[FreshnessSample] = []
        self.epoch = 0

    def note(self, answer: Answer, now_ms: float) -> None:
        """Takes an answer for the probe, and when it came."""
        self.epoch = max(self.epoch, answer.epoch)
        if answer.found and (not self.first_shown or answer.value.last > self.first_shown[-1][0]):
            self.first_shown.append((answer.value.last, now_ms))


class Recent:
    """How old readings were when they were first shown, of late: by the probe's own answers, whose readings are sent
    at even intervals and say when."""

    def __init__(self) -> None:
        self._since_ms: float | None = None
        self._shown: tuple[int, int] = 0, 0
        self._ages: deque[FreshnessSample] = deque(maxlen=_MOST_AGES)

    def note(self, answer: Answer, now_ms: float) -> None:
        """Takes an answer for the probe, and when it came. What was sent before the first one is not counted."""
        if not answer.found or answer.value.readings <= self._shown[0]:
            return
        (readings, time_ms), self._shown = self._shown, (answer.value.readings, answer.value.time_ms)
        if self._since_ms is None:
            self._since_ms = now_ms
            return
        new = self._shown[0] - readings
        step_ms = (self._shown[1] - time_ms) / new
        for behind in range(min(new, _MOST_AGES)):
            sent_ms = self._shown[1] - behind * step_ms
            if sent_ms >= self._since_ms:
                self._ages.append((now_ms, now_ms - sent_ms))

    def percentiles_ms(self, now_ms: float) -> tuple[float, float] | None:
        """The median delay, and that of 99 in 100, in milliseconds, of readings that were first shown in the last
        RECENT_SECONDS; None: there were none.
        """
        while self._ages and now_ms - self._ages[0][0] > RECENT_SECONDS * 1000:
            self._ages.popleft()
        ages = [age_ms for _, age_ms in self._ages]
        median, most = percentile(ages, 0.5), percentile(ages, 0.99)
        return None if median is None or most is None else (median, most)


def sent(bootstrap_servers: str, topic: str, partition: int, probe: str) -> list[FreshnessSample]:
    """The probe's readings by Kafka's timestamps; `partition` is where they are, and nothing else but readings."""
    ends = {partition: topic_ends(bootstrap_servers, topic)[partition]}
    found: list[FreshnessSample] = []
    for message in records_before(bootstrap_servers, topic, ends):
        reading = json.loads(message.value() or b"{}")
        if reading.get("sensor") == probe:
            found.append((reading["temperature"], message.timestamp()[1]))
    return found


def ages_ms(sent: Iterable[FreshnessSample], first_shown: Sequence[FreshnessSample]) -> list[float]:
    """The age of each reading that was sent while somebody looked, at the first answer that shows it or a later one.

    What was waiting before the first answer shows how long the start took, and what no answer has shown yet shows
    nothing: both are left out.
    """
    if not first_shown:
        return []
    temperatures = [temperature for temperature, _ in first_shown]
    ages = []
    for temperature, sent_ms in sent:
        at = bisect_left(temperatures, temperature)
        if sent_ms >= first_shown[0][1] and at < len(first_shown):
            ages.append(first_shown[at][1] - sent_ms)
    return ages


def percentile(values: Iterable[float], fraction: float) -> float | None:
    """The percentile by nearest rank, to a tenth; None where there are no values."""
    ordered = sorted(values)
    return round(ordered[max(0, math.ceil(fraction * len(ordered)) - 1)], 1) if ordered else None
