"""Keys as people type them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from keyhole.errors import KeyMismatch
from keyhole.types import KeyColumn, KeyType


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _timestamp(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


_PARSE: Mapping[KeyType, tuple[Callable[[str], Any], str]] = {
    KeyType.STRING: (str, "text"),
    KeyType.BINARY: (bytes.fromhex, "hexadecimal digits"),
    KeyType.BOOLEAN: (_boolean, "true or false"),
    KeyType.SMALLINT: (int, "a whole number"),
    KeyType.INT: (int, "a whole number"),
    KeyType.BIGINT: (int, "a whole number"),
    KeyType.DATE: (date.fromisoformat, "a date like 2026-11-21"),
    KeyType.TIMESTAMP: (_timestamp, "a time like 2026-11-21T10:00:00 (UTC where it names no zone)"),
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


def _split(columns: Sequence[KeyColumn], text: str) -> list[str]:
    return [text] if len(columns) == 1 else _parts(text)


def _parse_parts(columns: Sequence[KeyColumn], parts: Sequence[str]) -> Any:
    if len(parts) != len(columns):
        wanted = ", ".join(f"{column.name} {column.type}" for column in columns)
        raise KeyMismatch(
            f"the key has {len(parts)} columns, the state's key has {len(columns)}: {wanted}. Give them as a JSON "
            "array or separated by commas"
        )
    values = tuple(_parse(column, part) for column, part in zip(columns, parts, strict=True))
    return values[0] if len(values) == 1 else values


def _parts(text: str) -> list[str]:
    if text.startswith("["):
        try:
            return [part if isinstance(part, str) else json.dumps(part) for part in json.loads(text)]
        except ValueError as error:
            raise KeyMismatch("the key begins like a JSON array and is none") from error
    return text.split(",")


def _parse(column: KeyColumn, text: str) -> Any:
    parse, wanted = _PARSE[column.type]
    try:
        return parse(text)
    except (ValueError, KeyError) as error:
        raise KeyMismatch(f"key column {column.name} is a {column.type}: give {wanted}") from error
