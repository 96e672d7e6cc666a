"""What runs around a user's StatefulProcessor in Spark's tasks: gives out the changes of the exposed states as rows.

The changes of a call of the processor leave the operator behind the rows that the call gave out: one change row for
each entry that it changed, of several changes of one entry the last.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasUdfUtils
from pyspark.sql.types import StructType

from keyhole.arrow import OP
from keyhole.spark.exposed import CHANGE_PREFIX, KEY_PREFIX, STATE_COLUMN, Change, ExposedState
from keyhole.spark.recording import Recorder, RecordingHandle


class Output(Protocol):
    """In which form rows leave the operator."""

    def own(self, rows: Any) -> Any:
        """One thing that the processor gave out, with the operator's columns."""

    def changes(self, changes: Sequence[Change]) -> Iterator[Any]:
        """The same for changes."""


class RowOutput:
    """Of transformWithState: one Row each. A column that a Row lacks is null."""

    def own(self, rows: Row) -> Row:
        return rows

    def changes(self, changes: Sequence[Change]) -> Iterator[Row]:
        for change in changes:
            yield Row(**_columns(change))


class PandasOutput:
    """Of transformWithStateInPandas: data frames, which must have all columns.

    Args:
        own: The columns of the processor's own rows.
        all_columns: The operator's.
    """

    def __init__(self, own: Sequence[str], all_columns: Sequence[str]) -> None:
        self._own = list(own)
        self._all = list(all_columns)

    def own(self, rows: Any) -> Any:
        if not len(rows.columns):  # an empty one, which Spark takes for any schema
            return rows
        if not any(isinstance(name, str) for name in rows.columns):  # Spark then goes by position
            rows = rows.iloc[:, : len(self._own)].set_axis(self._own, axis="columns")
        return rows.assign(**{name: None for name in self._all if name not in self._own})

    def changes(self, changes: Sequence[Change]) -> Iterator[Any]:
        import pandas as pd

        if changes:
            rows = [_columns(change) for change in changes]
            # As objects, with None: pandas would put NaN where something is missing, and make floats of whole numbers.
            yield pd.DataFrame({name: pd.Series([row.get(name) for row in rows], dtype=object) for name in self._all})


def _columns(change: Change) -> dict[str, Any]:
    columns: dict[str, Any] = {STATE_COLUMN: change.state, OP: change.op.value}
    columns |= {KEY_PREFIX + name: value for name, value in change.key.items()}
    if change.entry:
        columns[CHANGE_PREFIX + change.state] = change.entry
    return columns


class RecordingProcessor(StatefulProcessor):
    """The user's processor, whose rows are followed by the change rows of the call that gave them.

    Args:
        key_schema: Of the grouping key.
        output: In which form rows leave.
    """

    def __init__(
        self, processor: StatefulProcessor, exposed: Sequence[ExposedState], key_schema: StructType, output: Output
    ) -> None:
        self._processor = processor
        self._exposed = {state.name: state for state in exposed}
        self._key_schema = key_schema
        self._output = output

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._recorder = Recorder(self._key_schema)
        recording = RecordingHandle(handle, self._exposed, self._recorder)
        self._processor.init(recording)
        recording.check_all_declared()

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: N802, N803
        self._recorder.begin(key)
        return self._with_changes(self._processor.handleInputRows(key, rows, timerValues))

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Any]:
        self._recorder.begin(key)
        return self._with_changes(
            self._processor.handleExpiredTimer(key=key, timerValues=timerValues, expiredTimerInfo=expiredTimerInfo)
        )

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:  # noqa: N802, N803
        self._recorder.begin(key)
        self._processor.handleInitialState(key, initialState, timerValues)

    def close(self) -> None:
        self._processor.close()

    def changes(self) -> Iterator[Any]:
        """What was recorded and has not left yet, as the operator gives it out."""
        yield from self._output.changes(self._recorder.take())

    def _with_changes(self, rows: Iterable[Any]) -> Iterator[Any]:
        # The user's function may be a generator: what it changes is known when it has given its last row.
        for given in rows:
            yield self._output.own(given)
        yield from self.changes()


class RecordingUdf(TransformWithStateInPandasUdfUtils):
    """Spark's loop around a processor, and behind each key's rows the changes that it has no call to give out in.

    Those of the initial state of a key that the first batch has no rows of.
    """

    def __init__(self, processor: RecordingProcessor, time_mode: str) -> None:
        super().__init__(processor, time_mode)
        self._recording = processor

    def transformWithStateWithInitStateUDF(self, *arguments: Any) -> Iterator[Any]:  # noqa: N802
        return itertools.chain(super().transformWithStateWithInitStateUDF(*arguments), self._recording.changes())
