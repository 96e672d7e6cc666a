"""What a reader may give as one column of a key, and as what it counts. Pure: numpy and pandas are not imported."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from numbers import Integral
from typing import Any

from keyhole.errors import KeyMismatch, NullKey
from keyhole.model.state import KeyColumn, KeyType

KeyValue = str | bytes | bool | int | date | datetime
"""One column of a key in Python: date and datetime for the Spark types of these names; a datetime has a time zone."""

PLAIN: Mapping[KeyType, type] = {
    KeyType.STRING: str,
    KeyType.BINARY: bytes,
    KeyType.BOOLEAN: bool,
    KeyType.SMALLINT: int,
    KeyType.INT: int,
    KeyType.BIGINT: int,
    KeyType.DATE: date,
    KeyType.TIMESTAMP: datetime,
}
BYTES = {KeyType.SMALLINT: 2, KeyType.INT: 4, KeyType.BIGINT: 8, KeyType.DATE: 4, KeyType.TIMESTAMP: 8}
"""How long a column of a fixed width is."""

_WANTED: Mapping[KeyType, str] = {
    KeyType.STRING: "a str",
    KeyType.BINARY: "bytes",
    KeyType.BOOLEAN: "a bool",
    KeyType.SMALLINT: "an int of 16 bits",
    KeyType.INT: "an int of 32 bits",
    KeyType.BIGINT: "an int of 64 bits",
    KeyType.DATE: "a datetime.date (of a datetime its date())",
    KeyType.TIMESTAMP: "a datetime with a time zone, in microseconds",
}


def plain(column: KeyColumn, value: object) -> Any:
    """The value as Python's own str, bytes, bool, int, date or datetime, where it has one meaning as one of these.

    That is: numpy's strings, bytes, integers and booleans, members of a StrEnum or an IntEnum, a bytearray, and a
    pandas Timestamp of whole microseconds.

    Raises:
        KeyMismatch: It does not fit the column's type.
        NullKey: It is None, or pandas' NaT.
    """
    kind, found = column.type, value
    if type(value) is not PLAIN[kind]:
        if value is None or _is_nat(value):
            raise NullKey(f"key column {column.name} is null; a state has no null keys", column=column.name)
        found = _PLAINER[kind](value)
    if found is None or not _fits(kind, found):
        raise KeyMismatch(
            f"key column {column.name} is a {kind}; the {_described(value)} that was given does not fit it: give "
            f"{_WANTED[kind]}{_of_member(kind, value)}",
            column=column.name,
            type=kind,
        )
    return found


def _fits(kind: KeyType, value: Any) -> bool:
    if kind is KeyType.TIMESTAMP:
        aware: bool = value.utcoffset() is not None
        return aware and _has_utc(value)
    if kind is KeyType.STRING:
        return not any("\ud800" <= character <= "\udfff" for character in value)
    if kind in (KeyType.SMALLINT, KeyType.INT, KeyType.BIGINT):
        limit: int = 1 << 8 * BYTES[kind] - 1
        in_range: bool = -limit <= value < limit
        return in_range
    return True


def _has_utc(value: datetime) -> bool:
    """Whether it is in the years 1 to 9999 in UTC, too."""
    try:
        value.astimezone(UTC)
    except OverflowError:
        return False
    return True


def _of_member(kind: KeyType, value: object) -> str:
    """Of a member of a plain Enum, which may mean its name or its value, how to say the one that fits."""
    if not isinstance(value, enum.Enum):
        return ""
    found = value.value if type(value.value) is PLAIN[kind] else _PLAINER[kind](value.value)
    return "" if found is None or not _fits(kind, found) else " (of a member of an Enum its .value)"


def _described(value: object) -> str:
    what = type(value).__name__
    if isinstance(value, datetime):
        what += " with nanoseconds" if _has_nanoseconds(value) else ""
        if value.utcoffset() is None:
            what += " without a time zone"
        elif not (1 <= value.year <= 9999 and _has_utc(value)):  # pandas has other years
            what += " of no year from 1 to 9999 in UTC"
    elif isinstance(value, str) and not _fits(KeyType.STRING, value):
        what += " with half of a character (a surrogate)"
    return what


def _has_nanoseconds(value: datetime) -> bool:
    return getattr(value, "nanosecond", 0) != 0  # of pandas


def _is_nat(value: object) -> bool:
    # pandas' null among times says that it is a datetime.
    return isinstance(value, datetime) and value != value


def _string(value: object) -> str | None:
    return str.__str__(value) if isinstance(value, str) else None


def _binary(value: object) -> bytes | None:
    return bytes(value) if isinstance(value, (bytes, bytearray)) else None


def _boolean(value: object) -> bool | None:
    return bool(value) if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_") else None


def _integer(value: Any) -> int | None:
    if not isinstance(value, Integral) or isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:  # a duration of numpy's says that it is an integer
        return None


def _date(value: object) -> date | None:
    of_day = isinstance(value, date) and not isinstance(value, datetime)
    return date(value.year, value.month, value.day) if of_day else None  # type: ignore[attr-defined]  # a date


def _timestamp(value: object) -> datetime | None:
    if not isinstance(value, datetime) or _has_nanoseconds(value):
        return None
    try:
        return datetime.combine(date(value.year, value.month, value.day), value.timetz())
    except ValueError:  # pandas has other years
        return None


_PLAINER: Mapping[KeyType, Callable[[Any], Any]] = {
    KeyType.STRING: _string,
    KeyType.BINARY: _binary,
    KeyType.BOOLEAN: _boolean,
    KeyType.SMALLINT: _integer,
    KeyType.INT: _integer,
    KeyType.BIGINT: _integer,
    KeyType.DATE: _date,
    KeyType.TIMESTAMP: _timestamp,
}
