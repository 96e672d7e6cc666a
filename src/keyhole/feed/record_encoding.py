"""From the bytes of a source record to values in the forms that JSON has: one interface, and JSON itself. Pure.

    JSON    b'{"customer": "c1", "at": 1763719200000000}'    ->  {"customer": "c1", "at": 1763719200000000}
    Avro    b"\\0\\0\\0\\0\\x07\\x04c1..." (keyhole.feed.registry)     ->  the same, and so Protobuf

What is behind it, the rows of plain records and the changes of tables alike, doesn't know which of them it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from keyhole.errors import MalformedRequest
from keyhole.feed.connect import parted
from keyhole.model.state import KeyColumn, KeyType

_decode = msgspec.json.Decoder().decode


class RegistryAway(Exception):
    """What the record's schema is can't be asked now: it says nothing of the record. The text is for people."""


class DecodedChange(NamedTuple):
    """A record of changes.

    Attributes:
        schema: As Kafka Connect writes schemas (see keyhole.feed.connect.columns); None: there is none.
        payload: What it is of.
    """

    schema: object
    payload: Any


class RecordEncoding(Protocol):
    """How the records of a topic are encoded. Thread-safe.

    Each method raises MalformedRequest where the bytes are none of this encoding: the message quotes nothing of them.
    RegistryAway: it must be asked again later, and the record is not to be given up.
    """

    def row(self, value: bytes) -> dict[str, Any]:
        """A record's value, which must be an object: a row."""

    def change(self, value: bytes) -> DecodedChange:
        """A record's value as an envelope of changes, with what is known of its columns."""

    def key(self, key: bytes, columns: Sequence[KeyColumn]) -> Any:
        """A record's key: an object, or of one column its value."""


class JsonEncoding:
    """JSON in UTF-8, with or without the schema that Kafka Connect writes beside it."""

    def row(self, value: bytes) -> dict[str, Any]:
        return json_object(value, "the record's value")

    def change(self, value: bytes) -> DecodedChange:
        return DecodedChange(*parted(self.row(value)))

    def key(self, key: bytes, columns: Sequence[KeyColumn]) -> Any:
        """A string may also be the key itself, without quotes."""
        if len(columns) == 1 and columns[0].type is KeyType.STRING and not key.startswith((b"{", b'"')):
            return _text(key)
        return parted(json_value(key, "the record's key"))[1]


JSON = JsonEncoding()


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


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise MalformedRequest("the record's key is no UTF-8") from None
