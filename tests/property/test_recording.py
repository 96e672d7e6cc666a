"""Whatever a processor does to its states, its change rows amount to what the states then hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues
from pyspark.sql.streaming.tws_tester import _InMemoryStatefulProcessorHandle
from pyspark.sql.types import StructType

from keyhole.model.state import StateKind
from keyhole.spark.exposed import ExposedState
from keyhole.spark.worker.processor_task import RecordingProcessor, RowOutput
from tests.support import change_rows

KEY, VALUE = StructType().add("k", "integer"), StructType().add("v", "integer")
EXPOSED = [
    ExposedState("value", StateKind.VALUE, VALUE, StructType()),
    ExposedState("list", StateKind.LIST, VALUE, StructType()),
    ExposedState("map", StateKind.MAP, VALUE, StructType().add("m", "integer")),
]

Work = Callable[[Any], None]
values = st.tuples(st.integers(0, 3))
some = st.lists(values, min_size=1, max_size=3)
works: st.SearchStrategy[Work] = st.one_of(
    values.map(lambda v: lambda p: p.value.update(v)),
    st.just(lambda p: p.value.clear()),
    values.map(lambda v: lambda p: p.list.appendValue(v)),
    some.map(lambda many: lambda p: p.list.appendList(many)),
    some.map(lambda many: lambda p: p.list.put(many)),
    st.just(lambda p: p.list.clear()),
    st.tuples(values, values).map(lambda pair: lambda p: p.map.updateValue(*pair)),
    values.map(lambda key: lambda p: p.map.removeKey(key)),
    st.just(lambda p: p.map.clear()),
)
calls = st.lists(st.tuples(st.integers(0, 1), st.lists(works, max_size=8), st.booleans()), max_size=6)


class Processor(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.value = handle.getValueState("value", VALUE)
        self.list = handle.getListState("list", VALUE)
        self.map = handle.getMapState("map", EXPOSED[2].map_key, VALUE)

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Any]:  # noqa: N802, N803
        for work in rows:
            work(self)
        return iter([])

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:  # noqa: N802, N803
        for work in initialState:
            work(self)


@given(calls)
def test_the_change_rows_of_any_calls_amount_to_what_the_states_hold(
    calls: Sequence[tuple[int, Sequence[Work], bool]],
) -> None:
    handle = _InMemoryStatefulProcessorHandle()
    recording = RecordingProcessor(Processor(), EXPOSED, KEY, RowOutput())
    recording.init(handle)
    rows: list[Any] = []
    for key, work, as_initial_state in calls:
        handle.setGroupingKey((key,))
        if as_initial_state:
            recording.handleInitialState((key,), work, TimerValues())
        else:
            rows += recording.handleInputRows((key,), iter(work), TimerValues())
    rows += recording.changes()
    changes = change_rows.changes(rows)

    for key in (0, 1):
        handle.setGroupingKey((key,))
        stored = {
            "value": handle.value_states["value"].get(),
            "list": list(handle.list_states["list"].get()),
            "map": dict(handle.map_states["map"].iterator()),
        }
        assert amounting([(state, row) for state, row in changes if row["k"] == key]) == stored


def amounting(changes: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    state: dict[str, Any] = {"value": None, "list": [], "map": {}}
    for name, entry in changes:
        op = entry["_keyhole_op"]
        if op == "clear":
            state[name] = {"value": None, "list": [], "map": {}}[name]
        elif op == "append":
            state["list"] = [*state["list"], (entry["v"],)]
        elif name == "value":
            state["value"] = (entry["v"],)
        elif op == "put":
            state["map"][entry["m"],] = (entry["v"],)
        else:
            state["map"].pop((entry["m"],), None)
    return state
