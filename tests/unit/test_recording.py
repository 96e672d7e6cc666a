"""A user's processor between Spark's calls and PySpark's own states in memory; without a running Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    ListState,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)
from pyspark.sql.streaming.tws_tester import _InMemoryStatefulProcessorHandle
from pyspark.sql.types import StructType

from keyhole.errors import InvalidConfiguration, ValueMismatch
from keyhole.model.state import StateKind
from keyhole.spark.exposed import ExposedState
from keyhole.spark.worker.processor_task import Output, PandasOutput, RecordingProcessor, RowOutput
from tests.support import change_rows

KEY = StructType().add("sensor", "string")
CELSIUS = StructType().add("celsius", "double")
HOUR = StructType().add("hour", "integer").add("half", "double")
COUNT = StructType().add("n", "long")

LAST = ExposedState("last", StateKind.VALUE, CELSIUS, StructType())
ALERTS = ExposedState("alerts", StateKind.LIST, CELSIUS, StructType())
HOURS = ExposedState("hours", StateKind.MAP, COUNT, HOUR)
ALL = (LAST, ALERTS, HOURS)

Work = Callable[["Processor"], None]


class Processor(StatefulProcessor):
    """Does what it is given as its rows, and gives out a row for each."""

    last: ValueState
    alerts: ListState
    hours: MapState

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", CELSIUS, 1000)
        self.alerts = handle.getListState("alerts", CELSIUS)
        self.hours = handle.getMapState("hours", HOUR, COUNT)
        self.private = handle.getValueState("private", COUNT)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: N802, N803
        for number, work in enumerate(rows):
            work(self)
            yield Row(number=number)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Any]:
        self.last.clear()
        return iter([Row(number=expiredTimerInfo.getExpiryTimeInMs())])

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:  # noqa: N802, N803
        initialState(self)


class Calls:
    """Calls a recording processor as Spark does."""

    def __init__(
        self,
        exposed: tuple[ExposedState, ...] = ALL,
        processor: StatefulProcessor | None = None,
        output: Output | None = None,
    ) -> None:
        self.handle = _InMemoryStatefulProcessorHandle("processingTime")
        self.user = processor or Processor()
        self.recording = RecordingProcessor(self.user, exposed, KEY, output or RowOutput())
        self.recording.init(self.handle)

    def input(self, key: str, *rows: Any) -> list[Any]:
        self.handle.setGroupingKey((key,))
        return list(self.recording.handleInputRows((key,), iter(rows), TimerValues()))

    def changes(self, *work: Work, key: str = "a") -> list[list[Any]]:
        """[state, op, the entry's columns as far as they have values] of the change rows, which all are of the key."""
        assert len(self.input(key, *work)) == len(work)
        left = self.left()
        assert {sensor for sensor, *_ in left} <= {key}
        return [change for _, *change in left]

    def left(self) -> list[list[Any]]:
        """[the key, and as `changes`] of what leaves behind the last row."""
        rows = change_rows.changes(self.recording.changes())
        return [[row.pop("sensor"), state, row.pop("_keyhole_op"), _entry(row)] for state, row in rows]


def _entry(row: dict[str, Any]) -> dict[str, Any] | None:
    """None: no column has a value."""
    return {name: value for name, value in row.items() if value is not None} or None


def hour(number: int) -> dict[str, Any]:
    return {"hour": number, "half": 0.5}


@pytest.mark.parametrize(
    ("work", "changes", "stored"),
    [
        (lambda p: p.last.update((1.5,)), [("last", "put", {"celsius": 1.5})], {"last": (1.5,)}),
        (lambda p: p.last.clear(), [("last", "clear", None)], {"last": None}),
        (
            lambda p: p.alerts.appendValue((1.5,)),
            [("alerts", "append", {"celsius": 1.5})],
            {"alerts": [(0.0,), (1.5,)]},
        ),
        (
            lambda p: p.alerts.appendList([(1.5,), (2.5,)]),
            [("alerts", "append", {"celsius": 1.5}), ("alerts", "append", {"celsius": 2.5})],
            {"alerts": [(0.0,), (1.5,), (2.5,)]},
        ),
        (
            lambda p: p.alerts.put([(1.5,)]),
            [("alerts", "clear", None), ("alerts", "append", {"celsius": 1.5})],
            {"alerts": [(1.5,)]},
        ),
        (lambda p: p.alerts.clear(), [("alerts", "clear", None)], {"alerts": []}),
        (
            lambda p: p.hours.updateValue((8, 0.5), (2,)),
            [("hours", "put", hour(8) | {"n": 2})],
            {"hours": {(7, 0.5): (1,), (8, 0.5): (2,)}},
        ),
        (lambda p: p.hours.removeKey((7, 0.5)), [("hours", "delete", hour(7))], {"hours": {}}),
        (lambda p: p.hours.clear(), [("hours", "clear", None)], {"hours": {}}),
    ],
)
def test_each_call_that_changes_an_exposed_state_does_so_and_gives_a_change_row(
    work: Work, changes: list[tuple[Any, ...]], stored: dict[str, Any]
) -> None:
    calls = Calls()
    calls.changes(
        lambda p: p.last.update((0.0,)),
        lambda p: p.alerts.appendValue((0.0,)),
        lambda p: p.hours.updateValue((7, 0.5), (1,)),
    )
    assert calls.changes(work) == [list(change) for change in changes]
    states = {
        "last": calls.handle.value_states["last"].get(),
        "alerts": list(calls.handle.list_states["alerts"].get()),
        "hours": dict(calls.handle.map_states["hours"].iterator()),
    }
    assert states | stored == states


def test_reading_a_state_and_changing_one_that_is_not_exposed_gives_no_change_row() -> None:
    calls = Calls()
    calls.changes(lambda p: p.last.update((1.5,)), lambda p: p.alerts.put([(2.5,)]))
    calls.changes(lambda p: p.hours.updateValue((7, 0.5), (1,)))
    seen: list[Any] = []

    def look(p: Any) -> None:
        seen.extend([p.last.exists(), p.last.get(), p.alerts.exists(), list(p.alerts.get()), p.hours.exists()])
        seen.extend([p.hours.getValue((7, 0.5)), p.hours.containsKey((8, 0.5)), list(p.hours.iterator())])
        seen.extend([list(p.hours.keys()), list(p.hours.values())])
        p.private.update((1,))

    assert calls.changes(look) == []
    assert seen[:5] == [True, (1.5,), True, [(2.5,)], True]
    assert seen[5:] == [(1,), False, [((7, 0.5), (1,))], [(7, 0.5)], [(1,)]]
    assert calls.handle.value_states["private"].get() == (1,)


def test_of_several_changes_of_an_entry_in_one_call_the_last_one_leaves() -> None:
    assert Calls().changes(
        lambda p: p.last.update((1.0,)),
        lambda p: p.hours.updateValue((7, 0.5), (1,)),
        lambda p: p.hours.updateValue((8, 0.5), (1,)),
        lambda p: p.hours.removeKey((7, 0.5)),
        lambda p: p.last.clear(),
        lambda p: p.last.update((2.0,)),
    ) == [
        ["last", "put", {"celsius": 2.0}],
        ["hours", "put", hour(8) | {"n": 1}],
        ["hours", "delete", hour(7)],
    ]


def test_what_comes_before_a_clear_does_not_leave_and_what_comes_behind_it_does() -> None:
    assert Calls().changes(
        lambda p: p.hours.updateValue((7, 0.5), (1,)),
        lambda p: p.alerts.appendValue((1.0,)),
        lambda p: p.hours.clear(),
        lambda p: p.alerts.put([(2.0,), (3.0,)]),
        lambda p: p.hours.updateValue((8, 0.5), (1,)),
        lambda p: p.alerts.put([(4.0,)]),
        lambda p: p.alerts.appendValue((4.0,)),
    ) == [
        ["alerts", "clear", None],
        ["alerts", "append", {"celsius": 4.0}],
        ["alerts", "append", {"celsius": 4.0}],
        ["hours", "clear", None],
        ["hours", "put", hour(8) | {"n": 1}],
    ]


def test_map_keys_are_one_where_spark_stores_them_as_one() -> None:
    changes = Calls().changes(
        lambda p: p.hours.updateValue((7, 0.0), (1,)),
        lambda p: p.hours.updateValue((7, -0.0), (2,)),
        lambda p: p.hours.updateValue((7, float("nan")), (3,)),
        lambda p: p.hours.updateValue((7, float("nan")), (4,)),
    )
    assert [entry["n"] for _, _, entry in changes] == [1, 2, 4]


def test_what_is_no_number_is_told_as_that_and_not_as_null() -> None:
    ((state, op, entry),) = Calls().changes(lambda p: p.last.update((float("nan"),)))
    assert (state, op, str(entry)) == ("last", "put", "{'celsius': nan}")


def test_values_given_as_an_iterator_are_stored_and_told() -> None:
    calls = Calls()
    assert len(calls.changes(lambda p: p.alerts.put(value for value in [(1.0,), (2.0,)]))) == 3
    assert len(calls.changes(lambda p: p.alerts.appendList(value for value in [(3.0,)]))) == 1
    assert list(calls.handle.list_states["alerts"].get()) == [(1.0,), (2.0,), (3.0,)]


def test_changes_leave_behind_the_rows_of_all_calls_and_bear_their_keys() -> None:
    calls = Calls()
    rows = calls.input("a", lambda p: p.last.update((1.0,)), lambda p: None)
    rows += calls.input("b", lambda p: p.last.update((2.0,)))
    rows += calls.input("a", lambda p: p.last.update((3.0,)))
    assert [row.number for row in rows] == [0, 1, 0, 0]
    assert calls.left() == [
        [key, "last", "put", {"celsius": value}] for key, value in (("a", 1.0), ("b", 2.0), ("a", 3.0))
    ]
    assert calls.left() == []


def test_what_is_too_large_to_be_kept_leaves_behind_its_call_in_pieces() -> None:
    calls = Calls()
    work = [lambda p, number=number: p.hours.updateValue((number, 0.5), (1,)) for number in range(6000)]
    given = [calls.input(key, *work)[len(work) :] for key in "ab"]
    assert [len(pieces) for pieces in given] == [1, 2]
    assert all(len(row["_keyhole_changes"]) < 1 << 20 for pieces in given for row in pieces)
    rows = [row for _, row in change_rows.changes([*given[0], *given[1], *calls.recording.changes()])]
    assert [(row["sensor"], row["hour"]) for row in rows] == [(key, number) for key in "ab" for number in range(6000)]
    assert calls.left() == []


def test_a_timer_that_clears_a_state_gives_a_change_row() -> None:
    calls = Calls()
    calls.changes(lambda p: p.last.update((1.0,)))
    rows = list(
        calls.recording.handleExpiredTimer(key=("a",), timerValues=TimerValues(), expiredTimerInfo=ExpiredTimerInfo(7))
    )
    assert rows == [Row(number=7)]
    assert calls.left() == [["a", "last", "clear", None]]
    assert calls.handle.value_states["last"].get() is None


def test_timers_are_sparks_own() -> None:
    calls = Calls()
    times: list[int] = []

    def work(p: Any) -> None:
        p.handle.registerTimer(5)
        p.handle.registerTimer(7)
        p.handle.deleteTimer(5)
        times.extend(p.handle.listTimers())

    assert calls.changes(work) == []
    assert times == [7]


def test_what_an_initial_state_changes_leaves_with_the_keys_rows_or_at_the_next_chance() -> None:
    calls = Calls()
    for key, value in (("a", 1.0), ("b", 2.0)):
        calls.handle.setGroupingKey((key,))
        initial = [lambda p, value=value: p.last.update((value,))]
        assert calls.recording.handleInitialState((key,), initial[0], TimerValues()) is None
    assert calls.left() == [["a", "last", "put", {"celsius": 1.0}], ["b", "last", "put", {"celsius": 2.0}]]
    assert calls.left() == []


def test_a_value_that_spark_would_store_as_another_one_reaches_neither() -> None:
    calls = Calls()
    with pytest.raises(ValueMismatch, match="state 'last': field 'celsius' is of type double, which takes no int"):
        calls.changes(lambda p: p.last.update((1,)))
    with pytest.raises(ValueMismatch, match="state 'hours': field 'hour' is of type int, which takes no str"):
        calls.changes(lambda p: p.hours.removeKey(("7", 0.5)))
    assert calls.handle.value_states["last"].get() is None
    assert list(calls.recording.changes()) == []


def test_what_spark_refuses_is_not_told() -> None:
    class Full(Exception):
        pass

    def refuse(value: object) -> None:
        raise Full

    calls = Calls()
    calls.handle.value_states["last"].update = refuse  # type: ignore[method-assign]
    with pytest.raises(Full):
        calls.changes(lambda p: p.last.update((1.0,)))
    assert list(calls.recording.changes()) == []


@pytest.mark.parametrize(
    ("exposed", "message"),
    [
        (
            ExposedState("last", StateKind.LIST, CELSIUS, StructType()),
            "'last' is exposed as list of struct<celsius:double>, but .* declares a value of struct<celsius:double>",
        ),
        (ExposedState("last", StateKind.VALUE, COUNT, StructType()), "exposed as value of struct<n:bigint>"),
        (
            ExposedState("hours", StateKind.MAP, COUNT, CELSIUS),
            "map of struct<celsius:double> to .*, but .* a map of struct<hour:int,half:double> to struct<n:bigint>",
        ),
        (
            ExposedState("latest", StateKind.VALUE, CELSIUS, StructType()),
            "'latest' is exposed, but .* declares no state",
        ),
    ],
)
def test_a_state_that_is_not_declared_as_exposed_is_refused_when_the_query_starts(
    exposed: ExposedState, message: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        Calls((exposed,))


def test_what_may_be_null_makes_no_other_schema() -> None:
    strict = StructType().add("celsius", "double", nullable=False)
    Calls((ExposedState("last", StateKind.VALUE, strict, StructType()),))


def test_an_exposed_state_cannot_be_deleted_for_all_keys_at_once() -> None:
    class Renamed(Processor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            super().init(handle)
            handle.deleteIfExists("before")
            handle.deleteIfExists("last")

    with pytest.raises(InvalidConfiguration, match="'last' is exposed, and the processor's init deletes it"):
        Calls(processor=Renamed())


class PandasProcessor(Processor):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: N802, N803
        for frame in rows:
            self.hours.updateValue((7, 0.5), (1,))
            self.last.clear()
            yield frame


@pytest.mark.parametrize(
    "given",
    [
        pd.DataFrame({"b": ["x"], "a": [1], "more": [0]}),  # by name
        pd.DataFrame({0: [1], 1: ["x"], 2: [0]}),  # by position
    ],
)
def test_a_pandas_processors_frames_get_the_columns_that_are_missing(given: pd.DataFrame) -> None:
    names = ["a", "b", "_keyhole_state", "_keyhole_changes"]
    calls = Calls(processor=PandasProcessor(), output=PandasOutput(["a", "b"], names))
    (own,) = calls.input("k", given)
    assert own[names].to_dict("records") == [{"a": 1, "b": "x"} | dict.fromkeys(names[2:])]
    frames = list(calls.recording.changes())
    assert [list(frame.columns) for frame in frames] == [names, names]
    rows = [row for frame in frames for row in frame.to_dict("records")]
    assert [(row["a"], row["b"]) for row in rows] == [(None, None)] * 2
    assert change_rows.changes(rows) == [
        ("last", {"_keyhole_op": "clear", "sensor": "k", "celsius": None}),
        ("hours", {"_keyhole_op": "put", "sensor": "k", **hour(7), "n": 1}),
    ]


def test_an_empty_pandas_frame_without_columns_stays_as_it_is() -> None:
    output = PandasOutput(["a"], ["a", "_keyhole_state", "_keyhole_changes"])
    assert list(output.own(pd.DataFrame()).columns) == []


def test_changes_of_a_state_that_readers_know_by_another_name_leave_under_that() -> None:
    """Also where the names of two states are each other's, and where one is that of a state that is not exposed."""
    last = replace(LAST, name="alerts", alias_of="last")
    alerts = replace(ALERTS, name="last", alias_of="alerts")
    hours = replace(HOURS, name="private", alias_of="hours")
    calls = Calls((last, alerts, hours))
    assert calls.changes(
        lambda p: p.last.update((1.5,)),
        lambda p: p.alerts.put([(2.5,)]),
        lambda p: p.hours.updateValue((7, 0.5), (1,)),
        lambda p: p.private.update((9,)),
    ) == [
        ["alerts", "put", {"celsius": 1.5}],
        ["last", "clear", None],
        ["last", "append", {"celsius": 2.5}],
        ["private", "put", hour(7) | {"n": 1}],
    ]
    assert calls.handle.value_states["last"].get() == (1.5,)
    with pytest.raises(ValueMismatch, match=r"state 'last' \(exposed as 'alerts'\): field 'celsius' is of type double"):
        calls.changes(lambda p: p.last.update((1,)))
