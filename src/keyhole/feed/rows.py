"""Records of a source topic as what becomes of rows: the JSON of most topics. Pure.

key "c1"   value {"customer": "c1", "amount": 12.5}    PUT of these fields
key "c1"   no value (a tombstone)                      DELETE of the row whose key the record's key has
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from keyhole.errors import MalformedRequest
from keyhole.feed.connect import converted, parted
from keyhole.model.state import KeyColumn, KeyType

_decode = msgspec.json.Decoder().decode
_NO_SCHEMAS: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


class SourceRecord(NamedTuple):
    """A record of a source topic, with where it stands there."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class Change(enum.Enum):
    """What becomes of a row."""

    PUT = enum.auto()
    DELETE = enum.auto()
    TAKE_BACK = enum.auto()
    """Of a reducing state: what the row brought before is taken out again."""


class RowChange(NamedTuple):
    """One row, as JSON has its fields, and what becomes of it. Of a deletion only the key's fields count."""

    change: Change
    fields: Mapping[str, Any]


def json_rows(record: SourceRecord, key: Sequence[KeyColumn]) -> list[RowChange]:
    """What becomes of which row, by one record of JSON.

    Args:
        key: The columns by which a tombstone names its row, those of the map key included.

    Raises:
        MalformedRequest: The record is no JSON object, or a tombstone whose key names no row.
    """
    if record.value is None:
        return [RowChange(Change.DELETE, row_of_key(record.key, key))]
    return [RowChange(Change.PUT, json_object(record.value, "the record's value"))]


def json_object(text: bytes, what: str) -> dict[str, Any]:
    """A JSON object. Raises MalformedRequest: it is none."""
    found = json_value(text, what)
    if type(found) is not dict:
        raise MalformedRequest(f"{what} is no JSON object")
    return found


def json_value(text: bytes, what: str) -> Any:
    """Any JSON value. Raises MalformedRequest: it is none; the message quotes nothing of it."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Not as the cause: it may hold the record.
        raise MalformedRequest(f"{what} is no JSON in UTF-8") from None


def row_of_key(
    key: bytes | None, columns: Sequence[KeyColumn], schemas: Mapping[str, Mapping[str, Any]] = _NO_SCHEMAS
) -> Mapping[str, Any]:
    """The key columns as a record's own key has them: a JSON object, or of one column its value.

    A string may also be the key itself, without quotes. Kafka Connect's converter may have put a schema beside it.

    Args:
        schemas: By which the columns of the values are converted, see keyhole.feed.connect. A key must come to the same
            as it does in a value: so it goes by these, not by the schema beside it.

    Raises:
        MalformedRequest: It has not all of these columns.
        ValueMismatch: See keyhole.feed.connect.converted.
    """
    return converted(_fields_of_key(key, columns), schemas)


def _fields_of_key(key: bytes | None, columns: Sequence[KeyColumn]) -> Mapping[str, Any]:
    if key is None:
        raise MalformedRequest("the record deletes a row, and has no key that says which")
    if len(columns) == 1 and columns[0].type is KeyType.STRING and not key.startswith((b"{", b'"')):
        return {columns[0].name: _text(key)}
    _, found = parted(json_value(key, "the record's key"))
    if type(found) is dict:
        if all(column.name in found for column in columns):
            return found
    elif len(columns) == 1:
        return {columns[0].name: found}
    raise MalformedRequest(f"the record's key lacks one of the columns {', '.join(column.name for column in columns)}")


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise MalformedRequest("the record's key is no UTF-8") from None
