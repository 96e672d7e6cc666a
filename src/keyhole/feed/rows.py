"""Records of a source topic as what becomes of rows: those of most topics, a row each, in any encoding. Pure.

key "c1"   value {"customer": "c1", "amount": 12.5}    PUT of these fields
key "c1"   no value (a tombstone)                      DELETE of the row whose key the record's key has
key "c1"   value {"customer": "c1", "gone": true}      DELETE, where the feed takes `gone` so
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from keyhole.errors import MalformedRequest
from keyhole.feed.connect import converted
from keyhole.feed.deleting_records import NO_ROWS, Deletions
from keyhole.feed.record_encoding import RecordEncoding
from keyhole.model.state import KeyColumn

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
    """One row, as JSON has its fields, and what becomes of it. Of a deletion the key's fields count, and its order."""

    change: Change
    fields: Mapping[str, Any]


def plain_rows(
    record: SourceRecord, key: Sequence[KeyColumn], encoding: RecordEncoding, deletions: Deletions = NO_ROWS
) -> list[RowChange]:
    """What becomes of which row, by one record that has a whole row, or by a tombstone.

    Args:
        key: The columns by which a tombstone names its row, those of the map key included.
        deletions: Which rows delete.

    Raises:
        MalformedRequest: The record's value is no object, or it is a tombstone whose key names no row.
    """
    if record.value is None:
        return [RowChange(Change.DELETE, row_of_key(record.key, key, encoding))]
    row = encoding.row(record.value)
    return [RowChange(Change.DELETE if deletions.said_by(row) else Change.PUT, row)]


def row_of_key(
    key: bytes | None,
    columns: Sequence[KeyColumn],
    encoding: RecordEncoding,
    schemas: Mapping[str, Mapping[str, Any]] = _NO_SCHEMAS,
) -> Mapping[str, Any]:
    """The key columns as a record's own key has them: an object, or of one column its value.

    Args:
        schemas: By which the columns of the values are converted, see keyhole.feed.connect. A key must come to the same
            as it does in a value: so it goes by these, not by the schema beside it.

    Raises:
        MalformedRequest: It has not all of these columns.
        ValueMismatch: See keyhole.feed.connect.converted.
    """
    return converted(_fields_of_key(key, columns, encoding), schemas)


def _fields_of_key(key: bytes | None, columns: Sequence[KeyColumn], encoding: RecordEncoding) -> Mapping[str, Any]:
    if key is None:
        raise MalformedRequest("the record deletes a row, and has no key that says which")
    found = encoding.key(key, columns)
    if type(found) is dict:
        if all(column.name in found for column in columns):
            return found
    elif len(columns) == 1:
        return {columns[0].name: found}
    raise MalformedRequest(f"the record's key lacks one of the columns {', '.join(column.name for column in columns)}")
