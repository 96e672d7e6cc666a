"""What a record of JSON is to the recounts: in plain Python, as the jobs' pipelines must not be asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn


class _Object(list[tuple[str, Any]]):
    """All names and values of a JSON object, also those that come twice."""


def fields_of(value: bytes | str | None, types: Mapping[str, type]) -> dict[str, Any] | None:
    """The fields of a record; None: it is not one JSON object in UTF-8, or a field is of another type.

    Of a name that comes twice the last one counts, if it is a string; all numbers must be some.

    Args:
        types: By name: str, int (of 64 bits), float, which may be a whole number, or object, which is anything: an
            object of JSON is no plain list. Each may be null or not there.
    """
    try:
        text = value.decode() if isinstance(value, bytes) else value or ""
        record = json.loads(text, object_pairs_hook=_Object, parse_constant=_refuse)
        if not isinstance(record, _Object):
            return None
        found: dict[str, Any] = dict.fromkeys(types)
        for name, of in record:
            if name in types:
                found[name] = _checked(of, types[name])
    except (ValueError, OverflowError, RecursionError):
        return None
    wrong = [name for name, of in found.items() if types[name] is str and not isinstance(of, str | None)]
    return None if wrong else found


def _checked(value: Any, of: type) -> Any:
    """Raises ValueError: it is a number that is none, or text that is none (half a surrogate pair)."""
    if value is None:
        return None
    if of is object:
        json.dumps(value, ensure_ascii=False).encode()
        return value
    if of is str:
        return value.encode().decode() if isinstance(value, str) else value
    if type(value) not in (int, of) or (of is int and not -(1 << 63) <= value < 1 << 63):
        raise ValueError("of another type")
    return float(value) if of is float else value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
