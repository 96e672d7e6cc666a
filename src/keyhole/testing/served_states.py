"""States in memory, served on loopback: for tests of a service that reads them. No Docker, Kafka or Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from keyhole.encoding.columnar_types import spark_name
from keyhole.encoding.row_codec import encode_row
from keyhole.encoding.value_types import value_type
from keyhole.errors import InvalidConfiguration, ValueMismatch
from keyhole.model.state import StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.model.state_path import state_path
from keyhole.testing.fake_server import FakeServer
from keyhole.testing.writer import key_column_of, names_of

_KEY_GROUPS = 8
_T = TypeVar("_T")


class ServedStates:
    """A server whose states are what a test writes. A client reads from `address` as from a client proxy.

    It answers by the same code for keys, rows and bounds as a state server, and keeps nothing. What real servers do
    when they are killed, `keyhole.testing.containers` shows. Thread-safe.

        with ServedStates() as served:
            served.write("shop/totals", [{"customer": "c1", "spent": 34.5}], key="customer")
            assert Dashboard(served.address).spent("c1") == 34.5
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="keyhole-served-states", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._server = self._run(FakeServer)
            asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result()
        self._end()

    @property
    def address(self) -> str:
        """Where clients find it, as host:port."""
        return self._server.address

    def write(
        self,
        path: str,
        rows: Sequence[Mapping[str, Any]],
        *,
        key: str | Sequence[str],
        map_key: str | Sequence[str] = (),
        schema: pa.Schema | None = None,
        delete: Sequence[Mapping[str, Any]] = (),
        query: str = "",
    ) -> int:
        """Puts rows into a state, which is made by its first ones; each call is one epoch. Blocks until readers see it,
        and watches are sent it.

        Args:
            path: APPLICATION/STATE.
            rows: Key, map key and value columns, by name. The last one of a key counts.
            key: The key columns' names.
            map_key: Those of the map key, which makes it a map state.
            schema: The types of all columns; default: those that Arrow finds in the rows (int: bigint, float: double,
                datetime with a time zone: timestamp).
            delete: Keys, by the names of their columns (then those of the map key), that have no value from then on.
            query: Of a state that is made: the query that it is of. A snapshot may have several states of one query.
                Default: one of its own.

        Returns:
            The number of the epoch.

        Raises:
            InvalidConfiguration: There is no row and no schema, or the state is there already, declared otherwise.
            KeyMismatch, ValueMismatch: A row doesn't fit.
        """
        hosted = self._run(lambda: self._server.states.get(state_path(path)))
        if schema is None:
            if not rows and hosted is not None:
                return self._run(lambda: self._put(hosted.descriptor, [], _keys(hosted.descriptor, delete)))
            if not rows:
                raise InvalidConfiguration(f"state {path!r}: the rows tell the columns' types: write some, or a schema")
            schema = pa.Table.from_pylist(list(rows)).schema
        query = query or (hosted.descriptor.query if hosted is not None else "")
        descriptor = _descriptor(path, query, schema, names_of(key), names_of(map_key))
        encoded = [_encoded(descriptor, row) for row in rows]
        return self._run(lambda: self._put(descriptor, encoded, _keys(descriptor, delete)))

    def stage(self, path: str, rows: Sequence[Mapping[str, Any]], *, delete: Sequence[Mapping[str, Any]] = ()) -> None:
        """Puts rows into the next epoch of a state, which is not committed: only reads of the latest have them. Blocks.

        What was staged before is dropped; the next `write` commits what is staged, and its own rows behind that.

        Args:
            path, rows, delete: As of `write`.

        Raises:
            InvalidConfiguration: There is no such state: `write` makes it.
            KeyMismatch, ValueMismatch: A row doesn't fit.
        """
        hosted = self._run(lambda: self._server.states.get(state_path(path)))
        if hosted is None:
            raise InvalidConfiguration(f"state {path!r} is not there: write its first rows, and stage others then")
        staged: list[tuple[object, bytes | None]] = [_encoded(hosted.descriptor, row) for row in rows]
        staged += [(key, None) for key in _keys(hosted.descriptor, delete)]

        def stage() -> None:
            hosted.staged.clear()
            for key, row in staged:
                hosted.stage(key, row)

        self._run(stage)

    def _put(self, descriptor: StateDescriptor, rows: Sequence[tuple[object, bytes]], deleted: Sequence[object]) -> int:
        name = descriptor.application, descriptor.state
        hosted = self._server.states.get(name)
        if hosted is None:
            hosted = self._server.host(descriptor)
        elif hosted.descriptor != descriptor:
            raise InvalidConfiguration(
                f"state {'/'.join(name)!r} is there already with other columns, or of another query: give the rows the "
                "same ones, in the same order and of the same types, or give a schema"
            )
        else:
            hosted.commit()
        for key, row in rows:
            hosted.put(key, row)
        for key in deleted:
            hosted.delete(key)
        self._server.changed()
        return hosted.epoch

    def _run(self, call: Callable[[], _T]) -> _T:
        async def run() -> _T:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _end(self) -> None:
        # Of calls that clients have left open. Else asyncio tells of each as of a bug.
        asyncio.run_coroutine_threadsafe(_others_ended(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _others_ended() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _descriptor(
    path: str, query: str, schema: pa.Schema, key: Sequence[str], map_key: Sequence[str]
) -> StateDescriptor:
    application, state = state_path(path)
    values = [field for field in schema if field.name not in {*key, *map_key}]
    return StateDescriptor(
        application,
        state,
        query or state,
        StateKind.MAP if map_key else StateKind.VALUE,
        _KEY_GROUPS,
        tuple(key_column_of(schema, name) for name in key),
        ValueSchema(1, tuple(ValueField(field.name, spark_name(field.type)) for field in values)),
        map_key=tuple(key_column_of(schema, name) for name in map_key),
        topic_id=f"served-{application}-{state}",
    )


def _encoded(descriptor: StateDescriptor, row: Mapping[str, Any]) -> tuple[object, bytes]:
    stored = []
    for field in descriptor.value.fields:
        value = row.get(field.name)
        try:
            stored.append(None if value is None else value_type(field.type).from_given(value))
        except (ValueError, OverflowError):
            raise ValueMismatch(
                f"field {field.name!r} of state {descriptor.state!r} is of type {field.type}, which a "
                f"{type(value).__name__} does not fit; docs/values.md has what a value of each type is in Python",
                field=field.name,
            ) from None
    (key,) = _keys(descriptor, [row])
    return key, encode_row(descriptor.value.version, stored)


def _keys(descriptor: StateDescriptor, rows: Sequence[Mapping[str, Any]]) -> list[object]:
    """Of each row what a client names it by."""
    names = [column.name for column in (*descriptor.key, *descriptor.map_key)]
    return [tuple(row.get(name) for name in names) if len(names) > 1 else row.get(names[0]) for row in rows]
