"""What the processor tells of its states, change by change, and what the recount makes of the same chunks."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import StringType, StructField, StructType

from jobs.vital_signs import recount, source
from jobs.vital_signs.chunks import SECOND_US, Chunk
from jobs.vital_signs.pipeline import KEY as PIPELINE_KEY
from jobs.vital_signs.pipeline import exposing
from jobs.vital_signs.processor import OPEN_CHUNKS, SEGMENTS, VITALS, VitalSigns, last_piece
from jobs.vital_signs.segments import HOUR_US, Segment, covered
from jobs.vital_signs.source import Sent
from keyhole.encoding.columnar import OP
from keyhole.spark.worker.processor_task import RecordingProcessor, RowOutput
from tests.support import change_rows
from tests.support.vital_signs import BEGIN_US, BLOB_US, KEY, chunk


class OfTwoColumns(RecordingProcessor):
    """Spark's tester knows keys of one column only: it gives the pair as if it were one."""

    def __init__(self) -> None:
        key = StructType([StructField(name, StringType()) for name in PIPELINE_KEY])
        super().__init__(VitalSigns(BLOB_US), exposing(BLOB_US).states, key, RowOutput())

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        return super().handleInputRows(key[0], rows, timerValues)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        return super().handleExpiredTimer(key[0], timerValues, expiredTimerInfo)


class Readers:
    """The three states as readers find them: what the change rows make."""

    def __init__(self) -> None:
        self.segments: dict[int, int] = {}
        self.open_chunks: list[Chunk] = []
        self.vitals: tuple[Any, ...] | None = None
        self.blobs: list[int] = []

    def take(self, row: Row) -> None:
        for change in change_rows.changes([row]):
            self._change(*change)
        for blob in change_rows.own([row]):
            assert tuple(blob[name] for name in PIPELINE_KEY) == KEY
            self.blobs.append(blob.start_us)

    def _change(self, state: str, row: dict[str, Any]) -> None:
        op, *key = (row.pop(name) for name in (OP, *PIPELINE_KEY))
        assert tuple(key) == KEY
        values = tuple(row.values())
        match state, op:
            case "segments", "put":
                self.segments[values[0]] = values[1]
            case "segments", "delete":
                del self.segments[values[0]]
            case "open_chunks", "append":
                self.open_chunks.append(Chunk(values[0], bytes(values[1])))
            case "open_chunks", "clear":
                self.open_chunks.clear()
            case "vitals", "put":
                self.vitals = values
            case other:
                raise AssertionError(other)


def test_readers_have_after_every_batch_and_timer_what_the_processor_has() -> None:
    draw = random.Random(5)
    processor = OfTwoColumns()
    tester = TwsTester(processor, timeMode="eventTime", eventTimeExtractor=lambda _: sys.maxsize)
    readers = Readers()
    seconds = [second for second in range(200) if draw.random() > 0.1]
    for first in range(0, 200, 25):
        of_batch = [chunk(second) for second in seconds if first <= second < first + 25]
        draw.shuffle(of_batch)
        rows = tester.test(KEY, [Row(start_us=item.start_us, samples=bytearray(item.samples)) for item in of_batch])
        rows += tester.setWatermark((BEGIN_US + (first + 10) * SECOND_US) // 1000)
        for row in [*rows, *processor.changes()]:
            readers.take(row)
        stored = tester.peekMapState(SEGMENTS, KEY)
        assert readers.segments == {start: end for (start,), (end,) in stored.items()}
        assert readers.open_chunks == [Chunk(*item) for item in tester.peekListState(OPEN_CHUNKS, KEY)]
        assert readers.vitals == tester.peekValueState(VITALS, KEY)
    assert len(readers.blobs) == 3


def recounted(chunks: list[Chunk]) -> recount.Recorded:
    return recount.recount(source.record(Sent(*KEY, item)) for item in chunks)[KEY]


def test_the_recount_s_segments_are_those_of_the_job() -> None:
    draw = random.Random(6)
    for _ in range(50):
        begin = BEGIN_US + HOUR_US - draw.randrange(30 * SECOND_US)  # on and off the second: hours cut chunks, too
        chunks = [Chunk(begin + second * SECOND_US, chunk(0).samples) for second in range(60) if draw.random() > 0.2]
        draw.shuffle(chunks)
        pieces = [Segment(item.start_us, item.start_us + SECOND_US) for item in chunks]
        assert recounted(chunks).segments() == covered(pieces)


def test_the_recount_s_last_piece_is_that_of_the_job() -> None:
    draw = random.Random(7)
    for _ in range(50):
        chunks = [chunk(second) for second in range(100) if draw.random() > 0.03]
        recent = [item for item in chunks if item.start_us > chunks[-1].start_us - 60 * SECOND_US]
        piece = last_piece(recent)
        assert recounted(chunks).last_piece() == (piece[0].start_us, piece[-1].start_us + SECOND_US)


def test_a_chunk_that_is_more_than_ten_seconds_behind_is_in_doubt() -> None:
    of = recounted([chunk(11), chunk(2), chunk(1), chunk(0)])
    assert of.doubtful == {chunk(1).start_us, chunk(0).start_us}
