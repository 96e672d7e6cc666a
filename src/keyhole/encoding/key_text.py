"""Keys as people and HTTP requests spell them, and back. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from keyhole.errors import KeyMismatch, NullKey
from keyhole.model.state import KeyColumn, KeyType

# As JSON has them. Python also takes 1_000, blanks, +5, 007 and the digits of any script.
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_HEXADECIMAL = re.compile(r"(?:[0-9A-Fa-f]{2})*")


def spelled_whole(text: str) -> int:
    """A whole number as JSON has them. Raises ValueError: It is none."""
    if not _WHOLE.fullmatch(text):
        raise ValueError("no whole number")
    return int(text)


def spelled_number(text: str) -> str:
    """The same text, where it is a number as JSON has them. Raises ValueError: It is none."""
    if not _NUMBER.fullmatch(text):
        raise ValueError("no number")
    return text


def spelled_binary(text: str) -> bytes:
    """The bytes of hexadecimal digits. Raises ValueError: It is none."""
    if not _HEXADECIMAL.fullmatch(text):
        raise ValueError("no pairs of hexadecimal digits")
    return bytes.fromhex(text)


def spelled_boolean(text: str) -> bool:
    """True or false, in letters of any case. Raises KeyError: It is neither."""
    return {"true": True, "false": False}[text.lower()]


def spelled_timestamp(text: str) -> datetime:
    """A moment in ISO 8601, in UTC where it names no zone. Raises ValueError: It is none."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


_PARSE: Mapping[KeyType, tuple[Callable[[str], Any], str]] = {
    KeyType.STRING: (str, "text"),
    KeyType.BINARY: (spelled_binary, "hexadecimal digits, two for each byte"),
    KeyType.BOOLEAN: (spelled_boolean, "true or false"),
    KeyType.SMALLINT: (spelled_whole, "a whole number like 42 or -7"),
    KeyType.INT: (spelled_whole, "a whole number like 42 or -7"),
    KeyType.BIGINT: (spelled_whole, "a whole number like 42 or -7"),
    KeyType.DATE: (date.fromisoformat, "a date like 2026-11-21"),
    KeyType.TIMESTAMP: (spelled_timestamp, "a time like 2026-11-21T10:00:00 (UTC where it names no zone)"),
}


def parse_bound(columns: Sequence[KeyColumn], text: str) -> Any:
    """As `parse_key`, of the first columns, as many as are given."""
    parts = _split(columns, text)
    return _parse_parts(columns[: len(parts)], parts)


def parse_key(columns: Sequence[KeyColumn], text: str) -> Any:
    """A key: the text itself where there is one column, else a JSON array, or the columns separated by commas.

    Raises:
        KeyMismatch: What was typed doesn't fit the columns.
    """
    return _parse_parts(columns, _split(columns, text))


def key_of(columns: Sequence[KeyColumn], given: object) -> Any:
    """As `parse_key`, of what JSON gives: a text, or a number or boolean for one column, or an array of these.

    Raises:
        KeyMismatch, NullKey: It doesn't fit the columns.
    """
    if isinstance(given, str):
        return parse_key(columns, given)
    return _parse_parts(columns, [_part(part) for part in (given if isinstance(given, list) else [given])])


def text_of(values: Any) -> str:
    """A key as `parse_key` and, of its first columns, `parse_bound` take it. Letters of all scripts are as they are."""
    if not isinstance(values, tuple):
        return str(_text(values))
    return json.dumps([_text(value) for value in values], ensure_ascii=False)


def typed(value: Any) -> Any:
    """A key, or a column of one, as JSON holds it: numbers and booleans as they are, all else as text."""
    if isinstance(value, tuple):
        return [typed(part) for part in value]
    return value if isinstance(value, int) else _text(value)


def _text(value: Any) -> str:
    match value:
        case bytes():
            return value.hex()
        case bool():
            return "true" if value else "false"
        case date():  # and datetime
            return value.isoformat()
        case _:
            return str(value)


def _part(given: object) -> str:
    if given is None:
        raise NullKey("a key column is null; a state has no null keys")
    if not isinstance(given, (str, int)):
        raise KeyMismatch(f"a key column can't be a JSON {type(given).__name__}; give a text, a number or a boolean")
    return given if isinstance(given, str) else json.dumps(given)


def _split(columns: Sequence[KeyColumn], text: str) -> list[str]:
    return [text] if len(columns) == 1 else _parts(text)


def _parse_parts(columns: Sequence[KeyColumn], parts: Sequence[str]) -> Any:
    if len(parts) != len(columns):
        wanted = ", ".join(f"{column.name} {column.type}" for column in columns)
        raise KeyMismatch(
            f"the key has {len(parts)} column{'s' * (len(parts) != 1)}, the state's key has {len(columns)}: {wanted}. "
            "Give them as a JSON array or separated by commas"
        )
    values = tuple(_parse(column, part) for column, part in zip(columns, parts, strict=True))
    return values[0] if len(values) == 1 else values


def _parts(text: str) -> list[str]:
    if text.startswith("["):
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            raise KeyMismatch("the key begins like a JSON array and is none") from None  # its cause holds the key
        return [_part(part) for part in given]
    return text.split(",")


def _parse(column: KeyColumn, text: str) -> Any:
    parse, wanted = _PARSE[column.type]
    try:
        return parse(text)
    except (ValueError, KeyError, OverflowError):
        # Not as the cause: it holds the key.
        raise KeyMismatch(f"key column {column.name} is a {column.type}: give {wanted}") from None
