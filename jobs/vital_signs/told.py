"""VitalSigns, which also tells what it changes in the three states that readers find: change rows beside its blobs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessorHandle, TimerValues

from jobs.vital_signs.processor import OPEN_CHUNKS, SEGMENTS, VITALS, VitalSigns

OUTPUT = (
    "patient string, signal string, state string, op string, start_us bigint, end_us bigint, samples binary, "
    "heart_rate double, breathing_rate double, beats int, begin_us bigint, "
    "blob_us bigint, chunks array<struct<start_us:bigint,samples:binary>>"
)
"""A blob where `state` is null; else a change of that state, in the order in which they happen."""

COLUMNS = {
    SEGMENTS: ("start_us", "end_us"),
    OPEN_CHUNKS: ("start_us", "samples"),
    VITALS: ("heart_rate", "breathing_rate", "beats", "begin_us", "end_us"),
}
"""By state, the columns of its entries, in the order of the processor's own schemas."""

_NAMES = [column.split()[0] for column in OUTPUT.replace("start_us:bigint,samples:binary", "").split(", ")]


class ToldVitalSigns(VitalSigns):
    """Gives OUTPUT in place of the processor's own."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """As its parent's."""
        super().init(handle)
        self._changes: list[dict[str, Any]] = []
        self._segments = self._watched(self._segments, SEGMENTS)
        self._open_chunks = self._watched(self._open_chunks, OPEN_CHUNKS)
        self._vitals = self._watched(self._vitals, VITALS)

    def handleInputRows(self, key: tuple[str, str], rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        """As its parent's."""
        return self._told(key, super().handleInputRows(key, rows, timerValues))

    def handleExpiredTimer(
        self, key: tuple[str, str], timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """As its parent's."""
        return self._told(key, super().handleExpiredTimer(key, timerValues, expiredTimerInfo))

    def _watched(self, state: Any, name: str) -> Any:
        return _Told(state, name, self._changes)

    def _told(self, key: tuple[str, str], blobs: Iterator[Row]) -> Iterator[Row]:
        patient, signal = key
        own = [blob.asDict() for blob in blobs]
        changes = [{"patient": patient, "signal": signal, **change} for change in self._changes]
        self._changes.clear()
        return (Row(**{name: row.get(name) for name in _NAMES}) for row in itertools.chain(own, changes))


class _Told:
    """A state of Spark's, and what is done to it."""

    def __init__(self, state: Any, name: str, changes: list[dict[str, Any]]) -> None:
        self._state = state
        self._name = name
        self._changes = changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)  # what reads

    def update(self, value: tuple[Any, ...]) -> None:
        self._state.update(value)
        self._tell("put", value)

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        self._state.updateValue(key, value)
        self._tell("put", (*key, *value))

    def removeKey(self, key: tuple[Any, ...]) -> None:
        self._state.removeKey(key)
        self._tell("delete", key)

    def appendList(self, values: list[tuple[Any, ...]]) -> None:
        self._state.appendList(values)
        for value in values:
            self._tell("append", value)

    def put(self, values: list[tuple[Any, ...]]) -> None:
        self._state.put(values)
        self._tell("clear")
        for value in values:
            self._tell("append", value)

    def clear(self) -> None:
        self._state.clear()
        self._tell("clear")

    def _tell(self, op: str, values: Iterable[Any] = ()) -> None:
        self._changes.append({"state": self._name, "op": op, **dict(zip(COLUMNS[self._name], values, strict=False))})
