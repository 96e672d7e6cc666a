"""Takes what Spark reports of a batch (StreamingQueryProgress, as JSON) into a query's counts. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from keyhole.coordinator.counts import SparkCounts
from keyhole.metrics.cardinality import OTHER
from keyhole.metrics.labels import SPARK_PHASES


def note_progress(counts: SparkCounts, progress: Mapping[str, Any]) -> None:
    """One batch has ended. Whatever a version of Spark doesn't report stays as it was."""
    phases: Mapping[str, float] = progress.get("durationMs") or {}
    if "addBatch" not in phases:
        return  # nothing new had come: no batch was run
    counts.batches += 1
    counts.batch = int(progress.get("batchId", counts.batch))
    seconds = phases.get("triggerExecution", progress.get("batchDuration", 0)) / 1000
    counts.seconds.observe(seconds)
    counts.recent.note_batch(counts.batch, seconds)
    for phase, milliseconds in phases.items():
        counts.phase_seconds[phase if phase in SPARK_PHASES else OTHER] += milliseconds / 1000
    counts.input_rows += int(progress.get("numInputRows", 0))
    counts.input_rows_per_second = _rate(progress.get("inputRowsPerSecond"))
    counts.processed_rows_per_second = _rate(progress.get("processedRowsPerSecond"))
    watermark = (progress.get("eventTime") or {}).get("watermark")
    if watermark:
        # One event with a wrong time sets it to a year that Python has not; the other figures count all the same.
        with suppress(ValueError):
            counts.watermark_ms = round(datetime.fromisoformat(watermark).timestamp() * 1000)
    _note_state(counts, progress.get("stateOperators") or [])
    for source in progress.get("sources") or []:
        counts.sources.update(_kafka_offsets(source.get("endOffset")))


def _note_state(counts: SparkCounts, operators: list[Mapping[str, Any]]) -> None:
    counts.state_rows = sum(int(one.get("numRowsTotal", 0)) for one in operators)
    counts.state_memory_bytes = sum(int(one.get("memoryUsedBytes", 0)) for one in operators)
    counts.state_updated += sum(int(one.get("numRowsUpdated", 0)) for one in operators)
    counts.state_dropped += sum(int(one.get("numRowsDroppedByWatermark", 0)) for one in operators)
    counts.state_commit_seconds += sum(int(one.get("commitTimeMs", 0)) for one in operators) / 1000


def _rate(value: object) -> float:
    """Spark leaves out, or makes a text of, what is not a number."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0


def _kafka_offsets(end: object) -> Iterator[tuple[tuple[str, int], int]]:
    """By topic and partition; nothing where it is another kind of source."""
    if not isinstance(end, Mapping):
        return
    for topic, partitions in end.items():
        if isinstance(partitions, Mapping):
            for partition, offset in partitions.items():
                if str(partition).isdecimal() and isinstance(offset, int):
                    yield (str(topic), int(partition)), offset
