"""Spark's state variables as a user's processor gets them: they pass each call on and record what changes something.

Runs in Spark's workers, on their one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import StructType

from keyhole.encoding.columnar import Op
from keyhole.errors import InvalidConfiguration
from keyhole.model.state import StateKind
from keyhole.spark.declaration.ttl import Ttl, ttl_in_spark
from keyhole.spark.exposed import ExposedState
from keyhole.spark.worker.pack import Packer
from keyhole.spark.worker.state_requests import ManyKeysClient, ManyKeysValueClient
from keyhole.spark.worker.state_values import Rows

_ALL = "all"
"""Stands for what a key has as a whole, where it has no entries, or they are all meant."""


class Recorder:
    """Keeps the changes of the key at hand, of each entry the last, and packs those of the keys before.

    Args:
        exposed: The states whose changes are recorded.
        key_schema: Of the grouping key.
    """

    def __init__(self, exposed: Iterable[ExposedState], key_schema: StructType) -> None:
        self._key_row = Rows("the grouping key", key_schema)
        self._key: tuple[Any, ...] = ()
        self._entries: dict[str, dict[object, tuple[Op, dict[str, Any]]]] = {}
        self._packers = {state.name: Packer(state.changes(key_schema)) for state in exposed}

    def begin(self, key: Sequence[Any]) -> None:
        """From now on changes are of this key, as Spark gives it to the processor."""
        self._settle()
        self._key = tuple(self._key_row(tuple(key)).values())

    def put(self, state: str, op: Op, row: dict[str, Any], entry: object = _ALL) -> None:
        """The entry is changed; takes the place of its change before, if there is one."""
        entries = self._entries.setdefault(state, {})
        entries.pop(entry, None)
        entries[entry] = op, row

    def append(self, state: str, row: dict[str, Any]) -> None:
        """The element comes behind those there are."""
        entries = self._entries.setdefault(state, {})
        entries[len(entries)] = Op.APPEND, row

    def clear(self, state: str) -> None:
        """The key has nothing any more: what was recorded of the state for it before has no effect."""
        self._entries[state] = {_ALL: (Op.CLEAR, {})}

    def take(self, *, whole: bool = True) -> list[tuple[str, bytes]]:
        """The changes by state, packed, each state's in the order of the calls. `whole`: as Packer.take."""
        self._settle()
        return [(state, piece) for state, packer in self._packers.items() for piece in packer.take(whole=whole)]

    def _settle(self) -> None:
        for state, entries in self._entries.items():
            add = self._packers[state].add
            for op, row in entries.values():
                add(op, self._key, row)
        self._entries = {}


class RecordingValueState(ValueState):
    """Spark's value state, whose changes are recorded once Spark has taken them."""

    def __init__(self, state: ValueState, exposed: ExposedState, recorder: Recorder) -> None:
        self._state = state
        self._name = exposed.name
        self._recorder = recorder
        self._row = _rows(exposed, exposed.value)

    def exists(self) -> bool:
        return self._state.exists()

    def get(self) -> tuple[Any, ...] | None:
        return self._state.get()

    def update(self, newValue: tuple[Any, ...]) -> None:  # noqa: N803  # Spark's name
        row = self._row(newValue)
        self._state.update(newValue)
        self._recorder.put(self._name, Op.PUT, row)

    def clear(self) -> None:
        self._state.clear()
        self._recorder.clear(self._name)


class RecordingListState(ListState):
    """Spark's list state, whose changes are recorded once Spark has taken them."""

    def __init__(self, state: ListState, exposed: ExposedState, recorder: Recorder) -> None:
        self._state = state
        self._name = exposed.name
        self._recorder = recorder
        self._row = _rows(exposed, exposed.value)

    def exists(self) -> bool:
        return self._state.exists()

    def get(self) -> Iterator[tuple[Any, ...]]:
        return self._state.get()

    def put(self, newState: list[tuple[Any, ...]]) -> None:  # noqa: N803
        values = list(newState)
        rows = [self._row(value) for value in values]
        self._state.put(values)
        self._recorder.clear(self._name)
        self._append(rows)

    def appendValue(self, newState: tuple[Any, ...]) -> None:  # noqa: N802, N803
        row = self._row(newState)
        self._state.appendValue(newState)
        self._append([row])

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:  # noqa: N802, N803
        values = list(newState)
        rows = [self._row(value) for value in values]
        self._state.appendList(values)
        self._append(rows)

    def clear(self) -> None:
        self._state.clear()
        self._recorder.clear(self._name)

    def _append(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            self._recorder.append(self._name, row)


class RecordingMapState(MapState):
    """Spark's map state, whose changes are recorded once Spark has taken them."""

    def __init__(self, state: MapState, exposed: ExposedState, recorder: Recorder) -> None:
        self._state = state
        self._name = exposed.name
        self._recorder = recorder
        self._key_row = _rows(exposed, exposed.map_key)
        self._value_row = _rows(exposed, exposed.value)

    def exists(self) -> bool:
        return self._state.exists()

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802
        return self._state.getValue(key)

    def containsKey(self, key: tuple[Any, ...]) -> bool:  # noqa: N802
        return self._state.containsKey(key)

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return self._state.iterator()

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return self._state.keys()

    def values(self) -> Iterator[tuple[Any, ...]]:
        return self._state.values()

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:  # noqa: N802
        key_row, value_row = self._key_row(key), self._value_row(value)
        self._state.updateValue(key, value)
        self._recorder.put(self._name, Op.PUT, key_row | value_row, _identity(key_row))

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802
        key_row = self._key_row(key)
        self._state.removeKey(key)
        self._recorder.put(self._name, Op.DELETE, key_row, _identity(key_row))

    def clear(self) -> None:
        self._state.clear()
        self._recorder.clear(self._name)


class RecordingHandle(StatefulProcessorHandle):
    """What the user's `init` is given: Spark's handle, whose exposed states record.

    Args:
        exposed: By the names under which `init` declares them.

    Raises, from the calls that declare a state:
        InvalidConfiguration: The state is not what it was exposed as.
    """

    def __init__(
        self, handle: StatefulProcessorHandle, exposed: Mapping[str, ExposedState], recorder: Recorder
    ) -> None:
        self._handle = handle
        self._exposed = exposed
        self._recorder = recorder
        self._ttls: dict[str, Ttl | None] = {}

    def getValueState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        schema: StructType | str,
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> ValueState:
        state = self._handle.getValueState(stateName, schema, ttlDurationMs)
        client = getattr(self._handle, "_statefulProcessorApiClient", None)
        if isinstance(client, ManyKeysClient):
            state = ValueState(ManyKeysValueClient(client, state._valueStateClient.schema), stateName)
        if (exposed := self._exposed.get(stateName)) is None:
            return state
        # Text is parsed in the JVM, and only Spark's client has what came of it.
        value = state._valueStateClient.schema if isinstance(schema, str) else schema
        self._declare(exposed, StateKind.VALUE, ttlDurationMs, value)
        return RecordingValueState(state, exposed, self._recorder)

    def getListState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        schema: StructType | str,
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> ListState:
        state = self._handle.getListState(stateName, schema, ttlDurationMs)
        if (exposed := self._exposed.get(stateName)) is None:
            return state
        value = state._listStateClient.schema if isinstance(schema, str) else schema
        self._declare(exposed, StateKind.LIST, ttlDurationMs, value)
        return RecordingListState(state, exposed, self._recorder)

    def getMapState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        userKeySchema: StructType | str,  # noqa: N803
        valueSchema: StructType | str,  # noqa: N803
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> MapState:
        state = self._handle.getMapState(stateName, userKeySchema, valueSchema, ttlDurationMs)
        if (exposed := self._exposed.get(stateName)) is None:
            return state
        self._declare(
            exposed,
            StateKind.MAP,
            ttlDurationMs,
            state._mapStateClient.value_schema if isinstance(valueSchema, str) else valueSchema,
            state._mapStateClient.user_key_schema if isinstance(userKeySchema, str) else userKeySchema,
        )
        return RecordingMapState(state, exposed, self._recorder)

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        self._handle.registerTimer(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        self._handle.deleteTimer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:  # noqa: N802
        return self._handle.listTimers()

    def deleteIfExists(self, stateName: str) -> None:  # noqa: N802, N803
        if (exposed := self._exposed.get(stateName)) is not None:
            raise InvalidConfiguration(
                f"{exposed.title} is exposed, and the processor's init deletes it for all keys at once, which no "
                "change row tells; don't expose it",
                state=exposed.name,
            )
        self._handle.deleteIfExists(stateName)

    def check_all_declared(self) -> Mapping[str, Ttl | None]:
        """To be called when `init` is done.

        Returns:
            By exposed state, its ttl in Spark; None: none.

        Raises:
            InvalidConfiguration: It has not declared an exposed state.
        """
        missing = [state for state in self._exposed.values() if state.name not in self._ttls]
        if missing:
            raise InvalidConfiguration(
                f"{missing[0].title} is exposed, but the processor's init declares no state of this name",
                state=missing[0].name,
            )
        return self._ttls

    def _declare(
        self,
        exposed: ExposedState,
        kind: StateKind,
        ttl_ms: int | None,
        value: StructType,
        map_key: StructType | None = None,
    ) -> None:
        declared = ExposedState(exposed.name, kind, value, map_key or StructType())
        if str(declared) != str(exposed):
            raise InvalidConfiguration(
                f"{exposed.title} is exposed as {exposed}, but the processor's init declares a {declared}; "
                "expose it as what it is, with the same schemas",
                state=exposed.name,
            )
        in_spark = ttl_in_spark(ttl_ms)
        # Readers must neither see what the processor no longer has nor miss what it has.
        if in_spark is not None and exposed.ttl not in (None, in_spark):
            raise InvalidConfiguration(
                f"{exposed.title} is exposed with a ttl of {exposed.ttl}, and the processor's init gives it one "
                f"of {in_spark}; leave the exposed one out: the state has the processor's",
                state=exposed.name,
            )
        self._ttls[exposed.name] = in_spark


def _rows(exposed: ExposedState, schema: StructType) -> Rows:
    return Rows(exposed.title, schema)


def _identity(value: Any) -> object:
    """Equal for equal map keys, and hashable. Floats by their text: -0.0 and 0.0 are two keys, NaN is one."""
    if isinstance(value, dict):
        return tuple(_identity(item) for item in value.values())
    if isinstance(value, list | tuple):
        return tuple(_identity(item) for item in value)
    return repr(value) if isinstance(value, float) else value
