"""Values that Kafka Connect's JSON converter wrote with their schema beside them, in forms that a state has. Pure.

schema: at is an io.debezium.time.Timestamp    payload: {"at": 1700000000000}    ->  {"at": 1700000000000000}
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from keyhole.errors import ValueMismatch

_Schema = Mapping[str, Any]
_Conversion = Callable[[Any, _Schema], Any]

# Far above what a state's decimals have, and below what Python makes text of.
_MOST_BYTES = 512
_MOST_SCALE = 2_000


def parted(value: Any) -> tuple[object, Any]:
    """The schema and what it is of; None and the value itself, where it has none beside it."""
    if type(value) is dict and "schema" in value and "payload" in value:
        return value["schema"], value["payload"]
    return None, value


def columns(schema: object) -> Mapping[str, _Schema]:
    """The schemas of a row's columns by name; empty where there are none."""
    fields = schema.get("fields") if isinstance(schema, Mapping) else None
    if not isinstance(fields, list):
        return {}
    return {str(field.get("field")): field for field in fields if isinstance(field, Mapping)}


def converted(row: Mapping[str, Any], schemas: Mapping[str, _Schema]) -> Mapping[str, Any]:
    """A row with what its schemas say: decimals as text, times in microseconds.

    Raises:
        ValueMismatch: A decimal is not written as its schema says, or is larger than any state takes.
    """
    return {name: _converted(value, schemas.get(name, {})) for name, value in row.items()} if schemas else row


def _converted(value: Any, schema: _Schema) -> Any:
    convert = _CONVERT.get(str(schema.get("name")))
    return value if convert is None or value is None else convert(value, schema)


def _decimal(value: Any, schema: _Schema) -> str:
    """A decimal as text, of the digits as a whole number in base64 and the scale beside it."""
    try:
        raw = base64.b64decode(value, validate=True)
        scale = int(schema["parameters"]["scale"])
    except (binascii.Error, TypeError, KeyError, ValueError):
        raise ValueMismatch("a decimal of the change is not written as its schema says") from None
    return decimal_text(raw, scale)


def decimal_text(raw: bytes, scale: int) -> str:
    """A decimal in plain digits, of its digits as a whole number, two's complement, the highest byte first.

    Raises:
        ValueMismatch: It is larger than any state takes.
    """
    if len(raw) > _MOST_BYTES or abs(scale) > _MOST_SCALE:
        raise ValueMismatch("a decimal of the record is larger than any state takes")
    digits = int.from_bytes(raw, "big", signed=True)
    if scale <= 0:
        return str(digits * 10**-scale)
    text = str(abs(digits)).rjust(scale + 1, "0")
    return f"{'-' if digits < 0 else ''}{text[:-scale]}.{text[-scale:]}"


def _millis(value: Any, _: _Schema) -> Any:
    return value * 1000 if type(value) is int else value


def _nanos(value: Any, _: _Schema) -> Any:
    return value // 1000 if type(value) is int else value


_CONVERT: Mapping[str, _Conversion] = MappingProxyType(
    {
        "org.apache.kafka.connect.data.Decimal": _decimal,
        "org.apache.kafka.connect.data.Timestamp": _millis,
        "io.debezium.time.Timestamp": _millis,
        "io.debezium.time.NanoTimestamp": _nanos,
    }
)
"""By the name of a column's schema, where what stands there has not the form that a state takes."""
