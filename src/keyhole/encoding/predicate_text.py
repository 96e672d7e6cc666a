"""Comparisons as a person types them: `max > 30`, `city in Bern,Basel`, `place.lat is not null`. Pure.

A command line and HTTP take several of them, all of which must hold. It is no language: field, operator, value, and the
value is spelled as keys are (keyhole.encoding.key_text).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from keyhole.encoding.key_text import (
    spelled_binary,
    spelled_boolean,
    spelled_number,
    spelled_timestamp,
    spelled_whole,
)
from keyhole.encoding.predicate_binding import FLOATS, WHOLE, bound, bound_field
from keyhole.errors import MalformedRequest, ValueMismatch
from keyhole.model.predicates import (
    And,
    ComparedBy,
    Comparison,
    FieldPath,
    FieldPlace,
    IsNull,
    Not,
    OneOf,
    Predicate,
)
from keyhole.model.state import StateDescriptor
from keyhole.model.type_names import TypeName, parsed

_OPERATORS = {of.value: of for of in ComparedBy} | {"=": ComparedBy.EQUAL}
_BEHIND = re.compile(r"\s*(==|=|!=|<=|>=|<|>)\s*(.*)|\s+(in)\s+(.*)|\s+is\s+(not\s+)?null\s*", re.DOTALL)
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
_FORM = "write FIELD OP VALUE with one of ==, !=, <, <=, >, >=, or FIELD in A,B,C, FIELD is null, FIELD is not null"


def parsed_where(descriptor: StateDescriptor, texts: Iterable[str]) -> Predicate | None:
    """The predicate that all of them make together; None: there are none.

    Raises:
        MalformedRequest: One is not of this form.
        ValueMismatch: The state has no such field, or what stands behind it is no value of its type.
    """
    parts = tuple(_comparison(descriptor, text) for text in texts)
    if not parts:
        return None
    whole = And(parts) if len(parts) > 1 else parts[0]
    bound(whole, descriptor)
    return whole


def parsed_field(descriptor: StateDescriptor, text: str) -> FieldPath:
    """A field by itself, as `place.lat` or `key:day`. Raises ValueMismatch: The state has none like it."""
    path, rest = _field(descriptor, text, "what is computed names no field", "write the name of one")
    if rest.strip():
        raise ValueMismatch(f"what follows field {str(path)!r} is no part of a field", field=path)
    return path


def _comparison(descriptor: StateDescriptor, text: str) -> Predicate:
    path, rest = _field(descriptor, text.rstrip(), "a comparison begins with no field", _FORM)
    match = _BEHIND.fullmatch(rest)
    if match is None:
        raise MalformedRequest(f"what follows field {str(path)!r} is no comparison: {_FORM}")
    sign, value, listed, values, negated = match.groups()
    kind = bound_field(path, descriptor).type
    if sign:
        return Comparison(path, _OPERATORS[sign], _value(path, kind, value))
    if listed:
        return OneOf(path, tuple(_value(path, kind, part) for part in _parts(path, values)))
    return Not(IsNull(path)) if negated else IsNull(path)


def _field(descriptor: StateDescriptor, text: str, lacks: str, instead: str) -> tuple[FieldPath, str]:
    """The field at the beginning, and what follows. What is longest counts: a name may be the beginning of another.

    Args:
        lacks, instead: What is said where there is none, and what to give.
    """
    columns = [column.name for column in (*descriptor.scan_key, *descriptor.entry_key)]
    types = {field.name: parsed(field.type) for field in descriptor.value.fields}
    # Blanks before a name may be part of it, and so may what looks like a place.
    place, colon, rest = text.lstrip().partition(":")
    starts = [(FieldPlace.ANY, text), (FieldPlace.ANY, text.lstrip())]
    starts += [(of, rest) for of in (FieldPlace.KEY, FieldPlace.VALUE) if colon and place == of.value]
    found = [
        (len(name) + (0 if of is FieldPlace.ANY else len(place + colon)), FieldPath(name, (), of), where[len(name) :])
        for name in {*columns, *types}
        for of, where in starts
        if where.startswith(name) and _ends(where[len(name) :])
    ]
    if found:
        _, path, rest = max(found, key=lambda one: one[0])
        return _inner(path, types.get(path.name, TypeName("")), rest)
    raise ValueMismatch(f"{lacks} of state {descriptor.path}, which has {', '.join([*columns, *types])}: {instead}")


def _inner(path: FieldPath, kind: TypeName, rest: str) -> tuple[FieldPath, str]:
    """A field of the struct behind a point, if there is one."""
    if not rest.startswith("."):
        return path, rest
    for name in sorted(kind.names, key=len, reverse=True):
        if rest[1:].startswith(name) and _ends(rest[1 + len(name) :]):
            deeper = FieldPath(path.name, (*path.inner, name), path.place)
            return _inner(deeper, kind.parts[kind.names.index(name)], rest[1 + len(name) :])
    there = f"it has {', '.join(kind.names)}" if kind.names else "it is no struct"
    raise ValueMismatch(f"what stands behind the point of field {str(path)!r} is no field of it; {there}", field=path)


def _ends(rest: str) -> bool:
    return not rest or rest[0] in ".=!<>" or rest[0].isspace()


def _parts(path: FieldPath, text: str) -> list[str]:
    text = text.strip()
    if not text.startswith("["):
        return [part.strip() for part in text.split(",")]
    try:
        # Numbers as they are spelled: those of JSON are rounded.
        given = json.loads(text, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        raise MalformedRequest(f"field {str(path)!r}: what follows in begins like a JSON array and is none") from None
    if None in given:
        raise MalformedRequest(
            f"field {str(path)!r}: nothing equals null; leave it out of the list, and ask for is null"
        )
    return [part if isinstance(part, str) else json.dumps(part) for part in given]


def _value(path: FieldPath, kind: TypeName, text: str) -> Any:
    parse, wanted = _PARSE.get(kind.kind, (str, ""))
    try:
        return parse(text)
    except (ValueError, KeyError, OverflowError, InvalidOperation):
        pass
    # Without what was typed, which may be a value.
    raise ValueMismatch(f"field {str(path)!r} is of type {kind.kind}: give {wanted}", field=path, type=kind.kind)


def _number(text: str) -> int | Decimal:
    try:
        return spelled_whole(text)
    except ValueError:
        return Decimal(spelled_number(text))


def _float(text: str) -> float:
    return float(text if text in _NO_NUMBERS else spelled_number(text))


def _clock(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        raise ValueError("it has a time zone")
    return moment


_PARSE: Mapping[str, tuple[Callable[[str], Any], str]] = {
    **dict.fromkeys((*WHOLE, "decimal"), (_number, "a number like 42, -7 or 1.5")),
    **dict.fromkeys(FLOATS, (_float, "a number like 1.5, NaN or -Infinity")),
    "string": (str, "text"),
    "binary": (spelled_binary, "hexadecimal digits, two for each byte"),
    "boolean": (spelled_boolean, "true or false"),
    "date": (date.fromisoformat, "a date like 2026-11-21"),
    "timestamp": (spelled_timestamp, "a time like 2026-11-21T10:00:00 (UTC where it names no zone)"),
    "timestamp_ntz": (_clock, "a time without a zone like 2026-11-21T10:00:00"),
}
