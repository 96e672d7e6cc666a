"""A processor whose variables are exposed, and which lets all rows pass, for the other states of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from keyhole.encoding.columnar import Op
from keyhole.spark.exposed import ExposedList, ExposedMap, ExposedValue
from keyhole.spark.processor import Exposed, QueryableProcessor
from tests.fault.states import NAMED
from tests.fault.workload import EXPOSED, PLACES, ROUTES, STOPS

ROWS = "state string, k string, m bigint, op string, n bigint, fields array<bigint>"
_FIELDS = ", ".join(f"{name} bigint" for name in NAMED)
_EXPOSE: dict[str, Exposed] = {
    PLACES: ExposedValue(_FIELDS),
    ROUTES: ExposedList(_FIELDS),
    STOPS: ExposedMap("m bigint", _FIELDS),
}


class Journeys(StatefulProcessor):
    """Of each key the last place, the route, and the stops: as the rows of these states say, in the order of `n`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._place = handle.getValueState(PLACES, _FIELDS)
        self._route = handle.getListState(ROUTES, _FIELDS)
        self._stops = handle.getMapState(STOPS, "m bigint", _FIELDS)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        of_states: dict[str, list[Any]] = {state: [] for state in EXPOSED}
        for row in rows:
            if row.state in of_states:
                of_states[row.state].append(row)
            else:
                yield Row(state=row.state, k=row.k, m=row.m, op=row.op, n=row.n, fields=row.fields)
        for state, take in ((PLACES, self._move), (ROUTES, self._travel), (STOPS, self._stop)):
            if ordered := sorted(of_states[state], key=lambda row: row.n):
                take(ordered)

    def close(self) -> None:
        pass

    def _move(self, rows: Sequence[Any]) -> None:
        for row in rows:
            if row.op == Op.PUT:
                self._place.update(tuple(row.fields))
            else:
                self._place.clear()

    def _travel(self, rows: Sequence[Any]) -> None:
        elements = [tuple(row.fields) for row in rows if row.fields]
        if all(row.op == Op.APPEND for row in rows):
            self._route.appendList(elements)
        elif elements:
            self._route.put(elements)
        else:
            self._route.clear()

    def _stop(self, rows: Sequence[Any]) -> None:
        for row in rows:
            if row.op == Op.CLEAR:
                self._stops.clear()
            elif row.op == Op.DELETE:
                self._stops.removeKey((row.m,))
            else:
                self._stops.updateValue((row.m,), tuple(row.fields))


def exposing(states: Sequence[str]) -> QueryableProcessor | None:
    """The processor, if the states have some of its variables."""
    expose = {state: _EXPOSE[state] for state in states if state in EXPOSED}
    return QueryableProcessor(Journeys(), key="k", expose=expose) if expose else None


def passed(rows: DataFrame, processor: QueryableProcessor | None) -> DataFrame:
    """What batches are made of: the rows, or what the processor makes of them."""
    return rows if processor is None else processor.transform(rows, ROWS, output_mode="append")
