"""What runs around a user's StatefulProcessor in Spark's tasks: gives out the changes of the exposed states.

A call of the processor makes one change row for each entry that it changed, of several changes of one entry the last.
They leave the operator packed: many keys' at once, in the order of the calls, at the latest behind the last own row.
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
from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasFuncMode as _Mode
from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasUdfUtils
from pyspark.sql.types import StructType

from keyhole.spark.exposed import CHANGES_COLUMN, STATE_COLUMN, ExposedState
from keyhole.spark.worker.recording import Recorder, RecordingHandle
from keyhole.spark.worker.state_requests import MOST_KEYS, ManyKeysClient

MOST_WAITING_ROWS = 1024
"""Of keys that wait for others."""
# Their methods say what the processor asks for.
_FIRST_KEYS = 4


class Output(Protocol):
    """In which form rows leave the operator."""

    def own(self, rows: Any) -> Any:
        """One thing that the processor gave out, with the operator's columns."""

    def changes(self, state: str, packed: bytes) -> Any:
        """The same for changes of a state."""


class RowOutput:
    """Of transformWithState: one Row each. A column that a Row lacks is null."""

    def own(self, rows: Row) -> Row:
        return rows

    def changes(self, state: str, packed: bytes) -> Row:
        return Row(**{STATE_COLUMN: state, CHANGES_COLUMN: packed})


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

    def changes(self, state: str, packed: bytes) -> Any:
        import pandas as pd

        row = dict.fromkeys(self._all) | {STATE_COLUMN: state, CHANGES_COLUMN: packed}
        # As objects, with None: pandas would put NaN where something is missing.
        return pd.DataFrame({name: pd.Series([value], dtype=object) for name, value in row.items()})


class RecordingProcessor(StatefulProcessor):
    """The user's processor, some of whose rows are followed by the changes of the calls up to then.

    Args:
        key_schema: Of the grouping key.
        output: In which form rows leave.
    """

    def __init__(
        self, processor: StatefulProcessor, exposed: Sequence[ExposedState], key_schema: StructType, output: Output
    ) -> None:
        self._processor = processor
        self._exposed = {state.variable: state for state in exposed}
        self._key_schema = key_schema
        self._output = output

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._recorder = Recorder(self._exposed.values(), self._key_schema)
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

    def changes(self, *, whole: bool = True) -> Iterator[Any]:
        """What was recorded and has not left yet, as the operator gives it out. `whole`: as Packer.take."""
        for state, packed in self._recorder.take(whole=whole):
            yield self._output.changes(state, packed)

    def _with_changes(self, rows: Iterable[Any]) -> Iterator[Any]:
        # The user's function may be a generator: what it changes is known when it has given its last row.
        for given in rows:
            yield self._output.own(given)
        yield from self.changes(whole=False)


class RecordingUdf(TransformWithStateInPandasUdfUtils):
    """Spark's loop around a processor, and behind its last row the changes that have not left yet.

    Keys with few rows wait for each other, so that what the processor asks of Spark is asked for all of them at once
    (keyhole.spark.worker.state_requests).

    Args:
        waits: Rows come one by one, and not as data frames of many.
    """

    def __init__(self, processor: RecordingProcessor, time_mode: str, *, waits: bool = False) -> None:
        super().__init__(processor, time_mode)
        self._recording = processor
        self._waits = waits
        self._client: ManyKeysClient | None = None
        self._waiting: list[tuple[Any, Iterator[Any]]] = []
        self._rows = 0
        self._most_keys = _FIRST_KEYS

    def transformWithStateUDF(self, client: Any, mode: _Mode, *arguments: Any) -> Iterator[Any]:  # noqa: N802
        if mode is _Mode.PRE_INIT:
            return super().transformWithStateUDF(client, mode, *arguments)
        if self._client is None:  # each task has a function of its own
            self._client = ManyKeysClient(client)
        if mode is not _Mode.PROCESS_DATA:
            return self._behind(self._client, mode, *arguments)
        key, rows = arguments
        if not self._waits:
            return super().transformWithStateUDF(self._client, mode, key, rows)
        few = list(itertools.islice(rows, MOST_WAITING_ROWS - self._rows))
        self._rows += len(few)
        # There may be more of the last one that is to wait: as many as don't fit into memory.
        self._waiting.append((key, itertools.chain(few, rows)))
        if self._rows < MOST_WAITING_ROWS and len(self._waiting) < self._most_keys:
            return iter(())
        return self._processed(self._client)

    def transformWithStateWithInitStateUDF(self, client: Any, mode: _Mode, *arguments: Any) -> Iterator[Any]:  # noqa: N802
        rows = super().transformWithStateWithInitStateUDF(client, mode, *arguments)
        # Behind each key: one that has an initial state and no rows makes no call that could give anything out.
        return itertools.chain(rows, self._recording.changes(whole=mode is _Mode.COMPLETE))

    def _processed(self, client: ManyKeysClient) -> Iterator[Any]:
        """What those give out that wait."""
        waiting, self._waiting, self._rows = self._waiting, [], 0
        if not waiting:
            return
        self._most_keys = MOST_KEYS
        client.read_ahead([key for key, _ in waiting])
        for key, rows in waiting:
            yield from super().transformWithStateUDF(client, _Mode.PROCESS_DATA, key, rows)

    def _behind(self, client: ManyKeysClient, mode: _Mode, *arguments: Any) -> Iterator[Any]:
        """What comes behind the rows of all keys: the timers, and the end."""
        yield from self._processed(client)
        yield from super().transformWithStateUDF(client, mode, *arguments)
        if mode is _Mode.COMPLETE:
            yield from self._recording.changes()
