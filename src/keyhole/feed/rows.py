"""Records of a source topic as what becomes of rows: the JSON of most topics. Pure.

key "c1"   value {"customer": "c1", "amount": 12.5}    PUT of these fields
key "c1"   no value (a tombstone)                      DELETE of the row whose key the record's key has
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from keyhole.errors import MalformedRequest
from keyhole.model.state import KeyColumn, KeyType

_decode = msgspec.json.Decoder().decode


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
        return [RowChange(Change.DELETE, fields_of_key(record.key, key))]
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


def fields_of_key(key: bytes | None, columns: Sequence[KeyColumn]) -> Mapping[str, Any]:
    """The key columns as a record's own key has them: a JSON object, or of one column its value.

    A string may also be the key itself, without quotes.

    Raises:
        MalformedRequest: It has not all of these columns.
    """
    if key is None:
        raise MalformedRequest("the record deletes a row, and has no key that says which")
    if len(columns) == 1 and columns[0].type is KeyType.STRING and not key.startswith((b"{", b'"')):
        return {columns[0].name: _text(key)}
    found = json_value(key, "the record's key")
    if type(found) is dict:
        payload = found.get("payload")
        # Kafka Connect's converter puts the schema beside it.
        fields = payload if "schema" in found and type(payload) is dict else found
        if all(column.name in fields for column in columns):
            return fields
    elif len(columns) == 1:
        return {columns[0].name: found}
    raise MalformedRequest(f"the record's key lacks one of the columns {', '.join(column.name for column in columns)}")


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise MalformedRequest("the record's key is no UTF-8") from None
