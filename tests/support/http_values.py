"""From the JSON of an HTTP answer back to what the Python client gives: docs/values.md, as any reader reads it."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from keyhole.encoding.row import Row

_WHOLE = ("tinyint", "smallint", "int", "bigint")


def python_of(kind: str, given: Any) -> Any:
    """A value of a Spark type; structs become dictionaries."""
    if given is None:
        return None
    if kind.startswith("array<"):
        return tuple(python_of(kind[6:-1], item) for item in given)
    if kind.startswith("map<"):
        of_key, of_value = _parts(kind[4:-1])
        return {python_of(of_key, key): python_of(of_value, value) for key, value in given}
    if kind.startswith("struct<"):
        fields = dict(part.split(":", 1) for part in _parts(kind[7:-1]))
        return {name: python_of(of, given[name]) for name, of in fields.items()}
    if kind.startswith("decimal"):
        return Decimal(given)
    if kind in _WHOLE:
        return int(given)
    if kind in ("float", "double"):
        return float(given)
    if kind == "binary":
        return base64.b64decode(given)
    if kind == "date":
        return dt.date.fromisoformat(given)
    return dt.datetime.fromisoformat(given) if kind.startswith("timestamp") else given


def plain(value: Any) -> Any:
    """What the client gives, with rows as dictionaries."""
    match value:
        case Row():
            return {name: plain(value[name]) for name in value}
        case Mapping():
            return {key: plain(item) for key, item in value.items()}
        case tuple():
            return tuple(plain(item) for item in value)
        case _:
            return value


def _parts(text: str) -> list[str]:
    """At the commas that are in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
