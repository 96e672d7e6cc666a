"""Changes of a database's table, as Debezium's envelopes have them, as what becomes of rows. Pure.

    {"op": "c", "before": null, "after": {"id": 7, "amount": 5}}                      PUT 7
    {"op": "u", "before": {"id": 7, "amount": 5}, "after": {"id": 7, "amount": 9}}    PUT 7; in a sum 5 is taken back
    {"op": "d", "before": {"id": 7, "amount": 9}, "after": null}                      DELETE 7; in a sum 9 is taken back
    no value                                                                          nothing: "d" has said it

With the schema beside it (`{"schema": ..., "payload": ...}`) values come in forms that a state has: decimals as text,
times in microseconds. Without one, connectors must be set to write them so (`decimal.handling.mode=string`).
In Avro they always come so.
docs/updates.md says how else connectors and databases must be set.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from keyhole.errors import MalformedRequest, ValueMismatch
from keyhole.feed.connect import columns, converted
from keyhole.feed.record_encoding import DecodedChange, RecordEncoding
from keyhole.feed.rows import Change, RowChange, SourceRecord, row_of_key
from keyhole.model.state import KeyColumn

_PLACEHOLDER = b"__debezium_unavailable_value"
_UNAVAILABLE = (_PLACEHOLDER.decode(), base64.b64encode(_PLACEHOLDER).decode())
"""What stands for a large value that was not changed, and that the database's log so doesn't have. Within an array,
and as a key of a map, too; in an array of numbers its bytes are the elements."""
_UNAVAILABLE_NUMBERS = list(_PLACEHOLDER)

_WHOLE_ROWS = "let it log whole rows (PostgreSQL: ALTER TABLE ... REPLICA IDENTITY FULL)"

_Fields = Mapping[str, Any]


class _Envelope(NamedTuple):
    """A change.

    Attributes:
        schemas: Of the row's columns, by name; empty: none are there.
    """

    before: _Fields | None
    operation: object
    after: _Fields | None
    schemas: Mapping[str, Mapping[str, Any]]


def change_rows(
    record: SourceRecord, key: Sequence[KeyColumn], read: Sequence[str], encoding: RecordEncoding, *, takes_back: bool
) -> list[RowChange]:
    """What becomes of which row, by one change of a table.

    Args:
        key: The state's key columns, those of the map key included.
        read: The columns that are read: of these none may lack, in the row that comes and in one that is taken back.
        takes_back: Whether the state is a reducing one: what a row brought is taken back where it changes or goes.

    Raises:
        MalformedRequest: The record is no change of a row.
        ValueMismatch: A column that is needed is not in the record.
    """
    if record.value is None:
        return []
    envelope = _envelope(encoding.change(record.value))
    before, operation, after, schemas = envelope
    if operation in ("c", "r", "u"):
        if after is None:
            raise MalformedRequest(f"a change of op {operation} has no row after it")
        _check_available(after, read)
        puts = [RowChange(Change.PUT, after)]
        return puts if operation != "u" else [*_left(envelope, after, key, read, takes_back), *puts]
    if operation == "d":
        if takes_back:
            return [_taken_back(envelope, read)]
        names_it = before is not None and all(before.get(column.name) is not None for column in key)
        return [
            RowChange(Change.DELETE, before if names_it and before else row_of_key(record.key, key, encoding, schemas))
        ]
    named = repr(operation) if operation in ("t", "m") else "another one"
    raise MalformedRequest(
        f"a change has the op {named}; rows come of c, r, u and d. A table that was truncated must be read anew"
    )


def _left(
    envelope: _Envelope, after: _Fields, key: Sequence[KeyColumn], read: Sequence[str], takes_back: bool
) -> list[RowChange]:
    """What is done to the row as it was before a change."""
    if takes_back:
        return [_taken_back(envelope, read)]
    before = envelope.before
    # Most databases say what was before only where the table's key has changed.
    moved = before is not None and all(before.get(column.name) is not None for column in key)
    if before is None or not moved or all(before[column.name] == after.get(column.name) for column in key):
        return []
    return [RowChange(Change.DELETE, before)]


def _taken_back(envelope: _Envelope, read: Sequence[str]) -> RowChange:
    before = envelope.before
    if before is None:
        raise ValueMismatch(
            f"a change does not say what the row was before, which sums need, as the database's log does not: "
            f"{_WHOLE_ROWS}"
        )
    for name in read:
        # A column that is never null is null here where the log has the primary key alone.
        if name not in before or (before[name] is None and envelope.schemas.get(name, {}).get("optional") is False):
            raise ValueMismatch(
                f"a change does not say what column {name} was before, which sums need, as the database's log does "
                f"not: {_WHOLE_ROWS}",
                field=name,
            )
    _check_available(before, read)
    return RowChange(Change.TAKE_BACK, before)


def _check_available(fields: _Fields, read: Sequence[str]) -> None:
    for name in read:
        if name not in fields:
            raise ValueMismatch(
                f"the row of a change has no column {name}: the connector leaves it out, or the table has none of that "
                "name",
                field=name,
            )
        if _unavailable(fields[name]):
            raise ValueMismatch(
                f"column {name} was not changed, and the database's log does not have it: {_WHOLE_ROWS}", field=name
            )


def _unavailable(value: Any) -> bool:
    if type(value) is str:
        return value in _UNAVAILABLE
    if type(value) is list:
        return value == _UNAVAILABLE_NUMBERS or any(map(_unavailable, value))
    return type(value) is dict and any(map(_unavailable, (*value, *value.values())))


def _envelope(change: DecodedChange) -> _Envelope:
    schema, payload = change
    # A truncated table has no rows.
    rows = type(payload) is dict and (payload.keys() & {"before", "after", "source"} or payload.get("op") == "t")
    if not rows or "op" not in payload:
        raise MalformedRequest(
            "the record is no envelope of Debezium's: it lacks op, or the rows. Records that were flattened "
            "(ExtractNewRecordState) are plain rows"
        )
    of_row = columns(schema)
    schemas = {**columns(of_row.get("before")), **columns(of_row.get("after"))}
    before, after = (_row(payload.get(name), schemas) for name in ("before", "after"))
    return _Envelope(before, payload["op"], after, schemas)


def _row(row: object, schemas: Mapping[str, Mapping[str, Any]]) -> _Fields | None:
    if row is None:
        return None
    if type(row) is not dict:
        raise MalformedRequest("a row of the change is no JSON object")
    return converted(row, schemas)
