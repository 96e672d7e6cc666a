"""From records of a source topic to updates of a state: the same ones each time a record is read. Pure.

orders, partition 3, offset 7: {"customer": "c1", "amount": 12.5}
    -> key group 14: [1, "<id of orders>", 3, 7, 0, 0, 1, ["c1"], null, [12.5]]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from keyhole.encoding.json_values import JsonRows, json_reader, key_reader
from keyhole.encoding.murmur3 import key_group
from keyhole.encoding.reducers import parse
from keyhole.errors import MalformedRequest, RequestError, ValueMismatch
from keyhole.feed.debezium import change_rows
from keyhole.feed.deleting_records import NO_ROWS, Deletions, Unordered
from keyhole.feed.feed_options import RecordFormat
from keyhole.feed.record_encoding import JSON, RecordEncoding
from keyhole.feed.rows import Change, RowChange, SourceRecord, plain_rows
from keyhole.model.state import KeyColumn, StateDescriptor, StateKind
from keyhole.protocol.updates import DELETE, PUT, UpdateRecord

_BIGINT = 1 << 63


class RoutedUpdate(NamedTuple):
    """An update, and the partition of the updates topic that it belongs to."""

    key_group: int
    record: UpdateRecord


class RecordMapper:
    """Maps the records of one source topic to updates of one state. Thread-safe.

    Args:
        descriptor: Of the state.
        record_format: Of the topic's records.
        source: Stands for the topic, and this way to read it, in each update; see SourceRow.
        encoding: Of these records.
        columns: The column of the records that each field of the value is made of; empty: they are called alike.
        deletions: Which rows delete, and what a deletion without an order does.
    """

    def __init__(
        self,
        descriptor: StateDescriptor,
        record_format: RecordFormat,
        source: str,
        encoding: RecordEncoding = JSON,
        columns: Sequence[str] = (),
        deletions: Deletions = NO_ROWS,
    ) -> None:
        self._descriptor = descriptor
        self._deletions = deletions
        self._of_changes = record_format.of_changes
        self._encoding = encoding
        self._source = source
        self._key_columns = (*descriptor.key, *descriptor.map_key)
        self._key = key_reader(descriptor.key)
        self._map_key = key_reader(descriptor.map_key)
        self._types = [column.type for column in descriptor.key]
        self._rows = JsonRows(descriptor)
        self._fields = [field.name for field in descriptor.value.fields]
        self._columns = list(columns) or self._fields
        self._counted = [
            bool(descriptor.reducers) and parse(descriptor.reducers[at]).reducer.of_presence
            for at in range(len(self._fields))
        ]

    def updates(self, record: SourceRecord) -> list[RoutedUpdate]:
        """What one record does to the state, in this order; nothing, where it says nothing.

        Raises:
            RequestError: The record can't be read, or does not fit the state: it is one for the dead letters. The
                message says why, and quotes nothing of it.
            RegistryAway: It can't be known yet.
        """
        return [
            self._update(record, sub, change, self._read(change))
            for sub, change in enumerate(self._changes(record))
            if not (record.value is None and self._ignored(change))
        ]

    def _changes(self, record: SourceRecord) -> list[RowChange]:
        if not self._of_changes:
            return self._plain(record)
        read = list(dict.fromkeys([*(column.name for column in self._key_columns), *self._columns]))
        takes_back = self._descriptor.kind is StateKind.REDUCING
        return change_rows(record, self._key_columns, read, self._encoding, takes_back=takes_back)

    def _plain(self, record: SourceRecord) -> list[RowChange]:
        try:
            return plain_rows(record, self._key_columns, self._encoding, self._deletions)
        except RequestError:
            # Of a tombstone that is passed over, the key need not say which entry it is: it has that of the source's
            # table, which may be another one than the state's.
            if record.value is None and self._descriptor.order_by and self._deletions.unordered is Unordered.IGNORE:
                return []
            raise

    def _ignored(self, change: RowChange) -> bool:
        return self._deletions.unordered is Unordered.IGNORE and self._lacks_order(change)

    def _lacks_order(self, change: RowChange) -> bool:
        of = self._descriptor.order_by
        return bool(of) and change.change is Change.DELETE and change.fields.get(of) is None

    def _read(self, change: RowChange) -> list[Any] | None:
        """The value as JSON has it, where the change has one: it fits the state. Of a deletion that is its order."""
        if change.change is Change.DELETE:
            return self._order(change)
        given = [
            int(change.fields.get(name) is not None) if counted else change.fields.get(name)
            for name, counted in zip(self._columns, self._counted, strict=True)
        ]
        stored = self._rows.stored(self._descriptor.value.version, given)
        if self._of_changes and self._descriptor.reducers:
            taken_back = [self._negated(*pair) for pair in zip(self._fields, stored, strict=True)]
            return taken_back if change.change is Change.TAKE_BACK else given
        return given

    def _order(self, change: RowChange) -> list[Any] | None:
        name = self._descriptor.order_by
        unordered = self._deletions.unordered
        if not name or (unordered is Unordered.DELETE and not self._descriptor.keep_deleted_ms):
            return None  # it deletes whatever is there
        if self._lacks_order(change):
            if unordered is Unordered.DELETE:
                return None
            # What is passed over has no value: behind a row that deletes without an order nothing comes that has one.
            raise MalformedRequest(
                f"the record deletes a row and has no {name}, by which deletions are ordered. Say what such a one "
                f"does: --unordered-deletes {Unordered.DELETE}; or, of records without a value, {Unordered.IGNORE}"
            )
        order = change.fields[name]
        (kind,) = (field.type for field in self._descriptor.value.fields if field.name == name)
        try:
            json_reader(kind)(order)
        except (ValueError, OverflowError, ArithmeticError):
            # Not as the cause: it may hold the value.
            raise ValueMismatch(f"the order {name} of a row that deletes is no {kind}", field=name) from None
        return [order] if self._descriptor.keep_deleted_ms else None

    def _negated(self, name: str, value: Any) -> Any:
        """What takes a value out of a sum. Values that could never be taken out are refused when they come, too."""
        if value is None:
            return None
        if type(value) is str:  # a decimal
            # Not `-`: that rounds to the digits of Python's context, and a state's decimals have more.
            number = Decimal(value)
            return format(number.copy_negate() if number else number, "f")
        if not (math.isfinite(value) if type(value) is float else value > -_BIGINT):
            raise ValueMismatch(f"field {name} has a value that could not be taken out of its sum again", field=name)
        return -value

    def _update(self, record: SourceRecord, sub: int, change: RowChange, value: list[Any] | None) -> RoutedUpdate:
        key = _given(change.fields, self._descriptor.key)
        map_key = _given(change.fields, self._descriptor.map_key) or None
        values = self._key(key)
        if map_key is not None:
            self._map_key(map_key)
        group = 0
        if self._descriptor.kind is not StateKind.BROADCAST:
            group = key_group(values, self._types, self._descriptor.key_groups)
        operation = DELETE if change.change is Change.DELETE else PUT
        version = self._descriptor.value.version
        update = UpdateRecord(
            self._source, record.partition, record.offset, sub, operation, version, key, map_key, value
        )
        return RoutedUpdate(group, update)


def _given(fields: Mapping[str, Any], columns: Sequence[KeyColumn]) -> list[Any]:
    return [fields.get(column.name) for column in columns]
