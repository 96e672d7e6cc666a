"""A VitalSigns processor on Spark's own tester, and small chunks for it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.streaming.tws_tester import TwsTester

from jobs.vital_signs.chunks import SECOND_US, Chunk, encode
from jobs.vital_signs.processor import OPEN_CHUNKS, OXYGEN_SATURATION, SEGMENTS, VITALS, VitalSigns
from jobs.vital_signs.segments import Segment

BEGIN_US = 1_795_219_200_000_000  # 2026-11-21, on the hour
KEY = ("patient-1", "pleth")
BLOB_US = 60 * SECOND_US


def chunk(second: int) -> Chunk:
    """Of a second after the beginning; its four samples tell which."""
    return encode(BEGIN_US + second * SECOND_US, np.arange(4, dtype=np.int32) + 10 * second)


def empty_chunk(second: int) -> Chunk:
    """Of another rate than the others."""
    return encode(BEGIN_US + second * SECOND_US, np.arange(1, dtype=np.int32))


class ProcessorBench:
    """One key's processor, without Spark: batches of chunks in, and a watermark that is moved by hand."""

    def __init__(self, key: tuple[str, str] = KEY) -> None:
        self._key = key
        self._watermark_us = 0
        self._processor = _OfTwoColumns(BLOB_US)
        # In Spark, too, rows pass that are behind the watermark of their batch: what is too late the processor decides.
        self._tester = TwsTester(self._processor, timeMode="eventTime", eventTimeExtractor=lambda _: sys.maxsize)

    def take(self, chunks: Iterable[Chunk]) -> None:
        """A batch."""
        rows = [Row(start_us=item.start_us, samples=bytearray(item.samples)) for item in chunks]
        assert self._tester.test(self._key, rows) == []

    def restart(self, blob_us: int) -> None:
        """The job goes on with blobs of another length."""
        self._processor._blob_us = blob_us

    def advance(self, watermark_us: int) -> Sequence[Row]:
        """Moves the watermark; returns the blobs that it closes."""
        if watermark_us // 1000 <= self._watermark_us // 1000:
            return []
        self._watermark_us = watermark_us
        rows = self._tester.setWatermark(watermark_us // 1000)
        assert isinstance(rows, list)
        return rows

    def segments(self) -> list[Segment]:
        """What the state `segments` holds, in order."""
        stored = self._tester.peekMapState(SEGMENTS, self._key)
        return sorted(Segment(start, end) for (start,), (end,) in stored.items())

    def open_chunks(self) -> list[Chunk]:
        """What the state `open_chunks` holds."""
        return [Chunk(*item) for item in self._tester.peekListState(OPEN_CHUNKS, self._key)]

    def vitals(self) -> tuple[object, ...] | None:
        """What the state `vitals` holds."""
        return self._tester.peekValueState(VITALS, self._key)

    def saturation(self) -> tuple[object, ...] | None:
        """What the state `oxygen_saturation` holds."""
        return self._tester.peekValueState(OXYGEN_SATURATION, self._key)


class _OfTwoColumns(VitalSigns):
    """The tester knows keys of one column only: it gives the pair as if it were one."""

    def handleInputRows(  # type: ignore[override]  # as said above
        self, key: tuple[tuple[str, str]], rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        return super().handleInputRows(key[0], rows, timerValues)

    def handleExpiredTimer(  # type: ignore[override]  # as said above
        self, key: tuple[tuple[str, str]], timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        return super().handleExpiredTimer(key[0], timerValues, expiredTimerInfo)
