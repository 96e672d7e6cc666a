"""What the job keeps per patient and signal, and what it does with a chunk: Spark's transformWithState, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import StructType

from jobs.vital_signs.blobs import Blob, blob_start, gathered
from jobs.vital_signs.chunks import CALIBRATIONS, CHUNK_US, PULSE, SAMPLE, SATURATION, Chunk, decode
from jobs.vital_signs.saturation import saturation
from jobs.vital_signs.segments import Segment, applied, extended
from jobs.vital_signs.vitals import vitals
from keyhole.spark.exposed import ExposedList, ExposedMap, ExposedValue

WINDOW_US = 60_000_000

# The four states that readers find, and what `init` declares them as.
SEGMENTS, OPEN_CHUNKS, VITALS, OXYGEN_SATURATION = "segments", "open_chunks", "vitals", "oxygen_saturation"
_SEGMENTS = ExposedMap(StructType().add("start_us", "long"), StructType().add("end_us", "long"))
_OPEN_CHUNKS = ExposedList(StructType().add("start_us", "long").add("samples", "binary"))
_VITALS = ExposedValue(
    StructType()
    .add("heart_rate", "double")
    .add("breathing_rate", "double")
    .add("beats", "integer")
    .add("begin_us", "long")
    .add("end_us", "long")
)
_OXYGEN_SATURATION = ExposedValue(
    StructType()
    .add("mean", "double")
    .add("lowest", "double")
    .add("samples", "integer")
    .add("begin_us", "long")
    .add("end_us", "long")
)
EXPOSED: Mapping[str, ExposedValue | ExposedList | ExposedMap] = {
    SEGMENTS: _SEGMENTS,
    OPEN_CHUNKS: _OPEN_CHUNKS,
    VITALS: _VITALS,
    OXYGEN_SATURATION: _OXYGEN_SATURATION,
}

OUTPUT = (
    "patient string, signal string, start_us bigint, end_us bigint, "
    "chunks array<struct<start_us:bigint,samples:binary>>"
)
"""The processor's own rows: a blob each, to be written to its file before the epoch is committed."""


class VitalSigns(StatefulProcessor):
    """Event time; a chunk that begins at or before the watermark is too late, and dropped.

    Any signal is kept. Of the pulse wave the rates are computed, and of the oxygen saturation how high it is.

    `segments` is written only: of what is stored there, only the segments that a chunk can still touch are needed, and
    those are in `open_segments`. `recent` has the chunks of the last minute, where more is computed of them; readers
    need neither.

    Args:
        blob_us: How long a blob is: whole seconds. May change with a new run.
    """

    def __init__(self, blob_us: int) -> None:
        self._blob_us = blob_us

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Spark calls it once per task."""
        self._handle = handle
        self._segments = handle.getMapState(SEGMENTS, _SEGMENTS.key, _SEGMENTS.value)
        self._open_chunks = handle.getListState(OPEN_CHUNKS, _OPEN_CHUNKS.schema)
        self._vitals = handle.getValueState(VITALS, _VITALS.schema)
        self._saturation = handle.getValueState(OXYGEN_SATURATION, _OXYGEN_SATURATION.schema)
        self._open_segments = handle.getListState("open_segments", "start_us bigint, end_us bigint")
        self._recent = handle.getMapState("recent", "start_us bigint", "samples binary")

    def handleInputRows(
        self,
        key: tuple[str, str],
        rows: Iterator[Row],
        timerValues: TimerValues,
    ) -> Iterator[Row]:
        """Takes the chunks of one patient and signal; they come in any order."""
        watermark_us = _watermark_us(timerValues)
        by_start = {row.start_us: Chunk(row.start_us, bytes(row.samples)) for row in rows}
        chunks = [by_start[start] for start in sorted(by_start) if start > watermark_us]
        if chunks:
            self._open_chunks.appendList([tuple(chunk) for chunk in chunks])
            self._await_closing(chunks)
            self._extend_segments(chunks, watermark_us)
            if key[1] == PULSE:
                self._tell_vitals(self._last_piece(chunks))
            elif key[1] == SATURATION:
                self._tell_saturation(self._last_piece(chunks))
        return iter(())

    def handleExpiredTimer(
        self,
        key: tuple[str, str],
        timerValues: TimerValues,
        expiredTimerInfo: ExpiredTimerInfo,
    ) -> Iterator[Row]:
        """The watermark has passed the end of a blob: gives it, and forgets its chunks."""
        patient, signal = key
        chunks = [Chunk(start, bytes(samples)) for start, samples in self._open_chunks.get()]
        closed, still_open = gathered(patient, signal, chunks, self._blob_us, _watermark_us(timerValues))
        if closed and still_open:
            self._open_chunks.put([tuple(chunk) for chunk in still_open])
        elif closed:
            self._open_chunks.clear()
        if still_open:  # blobs may have had another length when these chunks came, and their timer another end
            self._await_closing(still_open)
        return map(_row, closed)

    def _await_closing(self, chunks: Sequence[Chunk]) -> None:
        ends_ms = {(blob_start(chunk.start_us, self._blob_us) + self._blob_us) // 1000 for chunk in chunks}
        for end_ms in sorted(ends_ms.difference(self._handle.listTimers())):
            self._handle.registerTimer(end_ms)

    def _extend_segments(self, chunks: Sequence[Chunk], watermark_us: int) -> None:
        known = [Segment(*stored) for stored in self._open_segments.get()]
        change = extended(known, [Segment(chunk.start_us, chunk.start_us + CHUNK_US) for chunk in chunks])
        for start_us in change.removed:
            self._segments.removeKey((start_us,))
        for segment in change.put:
            self._segments.updateValue((segment.start_us,), (segment.end_us,))
        touchable = [segment for segment in applied(known, change) if segment.end_us > watermark_us]
        self._open_segments.put([tuple(segment) for segment in touchable])

    def _last_piece(self, chunks: Sequence[Chunk]) -> Sequence[Chunk]:
        """Of the last minute, with these."""
        by_start = {start: bytes(samples) for (start,), (samples,) in self._recent.iterator()}
        for chunk in chunks:
            self._recent.updateValue((chunk.start_us,), (chunk.samples,))
            by_start[chunk.start_us] = chunk.samples
        newest_us = max(by_start)
        for start in [start for start in by_start if start <= newest_us - WINDOW_US]:
            self._recent.removeKey((start,))
            del by_start[start]
        return last_piece([Chunk(*item) for item in sorted(by_start.items())])

    def _tell_vitals(self, piece: Sequence[Chunk]) -> None:
        found = vitals(decode(piece, CALIBRATIONS[PULSE]).values, len(piece[-1].samples) / SAMPLE.itemsize)
        self._vitals.update((*found, piece[0].start_us, piece[-1].start_us + CHUNK_US))

    def _tell_saturation(self, piece: Sequence[Chunk]) -> None:
        found = saturation(decode(piece, CALIBRATIONS[SATURATION]).values)
        self._saturation.update((*found, piece[0].start_us, piece[-1].start_us + CHUNK_US))


def last_piece(chunks: Sequence[Chunk]) -> Sequence[Chunk]:
    """The chunks up to the last one that follow each other without a gap, and at the same rate. Not of none."""
    first = len(chunks) - 1
    while first and (
        chunks[first - 1].start_us + CHUNK_US == chunks[first].start_us
        and len(chunks[first - 1].samples) == len(chunks[first].samples)
    ):
        first -= 1
    return chunks[first:]


def _watermark_us(at: TimerValues) -> int:
    return at.getCurrentWatermarkInMs() * 1000


def _row(blob: Blob) -> Row:
    chunks = [Row(start_us=chunk.start_us, samples=chunk.samples) for chunk in blob.chunks]
    return Row(patient=blob.patient, signal=blob.signal, start_us=blob.start_us, end_us=blob.end_us, chunks=chunks)
