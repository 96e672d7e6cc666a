"""Changes of a database's table, as Debezium's envelopes have them, as what becomes of rows. Pure.

    {"op": "c", "before": null, "after": {"id": 7, "amount": 5}}                      PUT 7
    {"op": "u", "before": {"id": 7, "amount": 5}, "after": {"id": 7, "amount": 9}}    PUT 7; in a sum 5 is taken back
    {"op": "d", "before": {"id": 7, "amount": 9}, "after": null}                      DELETE 7; in a sum 9 is taken back
    no value                                                                          nothing: "d" has said it

With the schema beside it (`{"schema": ..., "payload": ...}`) values come in forms that a state has: decimals as text,
times in microseconds. Without one, connectors must be told to write them so (`decimal.handling.mode=string`).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keyhole.errors import MalformedRequest, ValueMismatch
from keyhole.feed.rows import Change, RowChange, SourceRecord, fields_of_key, json_object
from keyhole.model.state import KeyColumn

_UNAVAILABLE = ("__debezium_unavailable_value", base64.b64encode(b"__debezium_unavailable_value").decode())
"""What stands for a large value that was not changed, and that the database's log so doesn't have."""

_Fields = Mapping[str, Any]
_Convert = Callable[[Any, Mapping[str, Any]], Any]


def change_rows(
    record: SourceRecord, key: Sequence[KeyColumn], read: Sequence[str], *, takes_back: bool
) -> list[RowChange]:
    """What becomes of which row, by one change of a table.

    Args:
        key: The state's key columns, those of the map key included.
        read: The columns that are read: of these no value may lack.
        takes_back: Whether the state is a reducing one: what a row brought is taken back where it changes or goes.

    Raises:
        MalformedRequest: The record is no change of a row.
        ValueMismatch: What was before is needed, and is not in the record.
    """
    if record.value is None:
        return []
    before, operation, after = _envelope(json_object(record.value, "the record's value"))
    if operation in ("c", "r", "u"):
        if after is None:
            raise MalformedRequest(f"a change of op {operation} has no row after it")
        _check_available(after, read)
        puts = [RowChange(Change.PUT, after)]
        return puts if operation != "u" else [*_left(before, after, key, read, takes_back), *puts]
    if operation == "d":
        if takes_back:
            return [_taken_back(before, read)]
        names_it = before is not None and all(before.get(column.name) is not None for column in key)
        return [RowChange(Change.DELETE, before if names_it and before else fields_of_key(record.key, key))]
    told = repr(operation) if operation in ("t", "m") else "another one"
    raise MalformedRequest(
        f"a change has the op {told}; rows come of c, r, u and d. A table that was truncated must be read anew"
    )


def _left(
    before: _Fields | None, after: _Fields, key: Sequence[KeyColumn], read: Sequence[str], takes_back: bool
) -> list[RowChange]:
    """What is done to the row as it was before a change."""
    if takes_back:
        return [_taken_back(before, read)]
    # Most databases say what was before only where the table's key has changed.
    moved = before is not None and all(before.get(column.name) is not None for column in key)
    if before is None or not moved or all(before[column.name] == after.get(column.name) for column in key):
        return []
    return [RowChange(Change.DELETE, before)]


def _taken_back(before: _Fields | None, read: Sequence[str]) -> RowChange:
    if before is None:
        raise ValueMismatch(
            "a change does not say what the row was before, which sums need: let the database log whole rows "
            "(PostgreSQL: ALTER TABLE ... REPLICA IDENTITY FULL)"
        )
    _check_available(before, read)
    return RowChange(Change.TAKE_BACK, before)


def _check_available(fields: _Fields, read: Sequence[str]) -> None:
    for name in read:
        if fields.get(name) in _UNAVAILABLE:
            raise ValueMismatch(
                f"column {name} was not changed, and the database's log does not have it: let it log whole rows "
                "(PostgreSQL: ALTER TABLE ... REPLICA IDENTITY FULL)",
                field=name,
            )


def _envelope(value: dict[str, Any]) -> tuple[_Fields | None, object, _Fields | None]:
    """What was before, the op, and what is after."""
    schema: object = None
    if "payload" in value and "schema" in value:
        schema, value = value["schema"], value["payload"]
    if type(value) is not dict or "op" not in value or "after" not in value:
        raise MalformedRequest(
            "the record is no envelope of Debezium's: it lacks op, or after. Records that were flattened "
            "(ExtractNewRecordState) are plain JSON"
        )
    before, after = (_row(value.get(name), _columns(schema, name)) for name in ("before", "after"))
    return before, value["op"], after


def _row(row: object, columns: Mapping[str, Mapping[str, Any]]) -> _Fields | None:
    if row is None:
        return None
    if type(row) is not dict:
        raise MalformedRequest("a row of the change is no JSON object")
    if not columns:
        return row
    return {name: _converted(value, columns.get(name, {})) for name, value in row.items()}


def _columns(schema: object, which: str) -> Mapping[str, Mapping[str, Any]]:
    """The schemas of a row's columns by name, as Kafka Connect's converter writes them; where there are none, empty."""
    found = _by_name(schema).get(which)
    return _by_name(found)


def _by_name(schema: object) -> Mapping[str, Mapping[str, Any]]:
    fields = schema.get("fields") if isinstance(schema, Mapping) else None
    if not isinstance(fields, list):
        return {}
    return {str(field.get("field")): field for field in fields if isinstance(field, Mapping)}


def _converted(value: Any, schema: Mapping[str, Any]) -> Any:
    convert = _CONVERT.get(str(schema.get("name")))
    return value if convert is None or value is None else convert(value, schema)


def _decimal(value: Any, schema: Mapping[str, Any]) -> Any:
    """A decimal as text, of the digits as a whole number in base64 and the scale beside it."""
    try:
        digits = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
        scale = int(schema["parameters"]["scale"])
    except (binascii.Error, TypeError, KeyError, ValueError):
        raise ValueMismatch("a decimal of the change is not written as its schema says") from None
    if scale <= 0:
        return str(digits * 10**-scale)
    text = str(abs(digits)).rjust(scale + 1, "0")
    return f"{'-' if digits < 0 else ''}{text[:-scale]}.{text[-scale:]}"


def _millis(value: Any, _: Mapping[str, Any]) -> Any:
    return value * 1000 if type(value) is int else value


def _nanos(value: Any, _: Mapping[str, Any]) -> Any:
    return value // 1000 if type(value) is int else value


_CONVERT: Mapping[str, _Convert] = {
    "org.apache.kafka.connect.data.Decimal": _decimal,
    "org.apache.kafka.connect.data.Timestamp": _millis,
    "io.debezium.time.Timestamp": _millis,
    "io.debezium.time.NanoTimestamp": _nanos,
}
"""By the name of a column's schema, where what stands there has not the form that a state takes."""
