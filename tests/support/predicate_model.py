"""What a predicate means, in plain Python with SQL's three values; and states, rows and predicates drawn for it."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.row_codec import encode_row
from keyhole.encoding.value_types import value_type
from keyhole.model.evolution import evolved
from keyhole.model.predicates import And, ComparedBy, Comparison, FieldPath, IsNull, Not, OneOf, Or, Predicate
from keyhole.model.state import StateDescriptor, StateKind, ValueField, ValueSchema
from tests.support.key_strategies import COLUMNS, keys
from tests.support.key_strategies import VALUES as KEY_VALUES

_FEW = st.integers(-3, 3)
FLOATS = st.sampled_from([0.0, -0.0, 0.5, 1.0, math.nan, math.inf, -math.inf]) | st.floats()
_TEXT = st.sampled_from(["", "a", "b", "ab", "ü", "\U0001f600", "\uffff"])

GIVEN: Mapping[str, st.SearchStrategy[Any]] = {
    "tinyint": _FEW,
    "int": _FEW,
    "bigint": _FEW | st.integers(-(2**63), 2**63 - 1),
    "float": st.sampled_from([0.5, 1.0, math.nan, math.inf]) | st.floats(width=32),
    "double": FLOATS,
    "decimal(6,2)": st.decimals(-9999, 9999, places=2) | st.sampled_from([Decimal("1.50"), Decimal("-1.50")]),
    "string": _TEXT,
    "binary": st.binary(max_size=2),
    "boolean": st.booleans(),
    "date": st.dates(dt.date(2026, 1, 1), dt.date(2026, 1, 4)),
    "timestamp": st.datetimes(dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 2), timezones=st.just(dt.UTC)),  # noqa: DTZ001
    "timestamp_ntz": st.datetimes(dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 2)),  # noqa: DTZ001
    "array<int>": st.lists(_FEW, max_size=2),
    "struct<x:int,y:double,z:struct<w:string>>": st.fixed_dictionaries(
        {
            "x": st.none() | _FEW,
            "y": st.none() | FLOATS,
            "z": st.none() | st.fixed_dictionaries({"w": st.none() | _TEXT}),
        }
    ),
}
_INNER = {("x",): "int", ("y",): "double", ("z", "w"): "string", ("z",): "struct"}
# What a value of the type may be compared with beside values of the type.
_ALSO: Mapping[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("tinyint", "int", "bigint"), st.sampled_from([0.5, math.inf, Decimal("1.5"), 2**70])),
    **dict.fromkeys(("float", "double"), st.sampled_from([0, 1, 2**53 + 1])),
    "decimal(6,2)": st.sampled_from([1, Decimal("1.505"), Decimal("1.5")]),
}


class Drawn(NamedTuple):
    """A state, and what is stored: readers' values by key and map key."""

    of: StateDescriptor
    stored: dict[bytes, bytes]


@st.composite
def states(draw: st.DrawFn, kind: StateKind | None = None) -> Drawn:
    """Of one schema or two, and rows of each."""
    map_key = draw(COLUMNS) if kind in (None, StateKind.MAP) and draw(st.booleans()) else ()
    names = st.lists(st.sampled_from(["a", "b", "c", "d", "class", "max(t)"]), min_size=1, unique=True)
    types = {name: draw(st.sampled_from(sorted(GIVEN))) for name in draw(names)}
    of = StateDescriptor(
        "app",
        "state",
        "main",
        StateKind.MAP if map_key else StateKind.VALUE,
        4,
        draw(COLUMNS),
        ValueSchema(1, tuple(ValueField(name, of) for name, of in types.items())),
        topic_id="topic",
        map_key=tuple(msgspec.structs.replace(column, name=f"m{at}") for at, column in enumerate(map_key)),
    )
    stored: dict[bytes, bytes] = {}
    _fill(draw, of, stored)
    if draw(st.booleans()):
        kept = [field for field in of.value.fields if draw(st.booleans())]
        new = draw(st.sampled_from(["int", "double", "string"]))
        default = draw(st.none() | GIVEN[new])
        packed = b"" if default is None else msgspec.msgpack.encode(value_type(new).from_given(default))
        fields = draw(st.permutations([*kept, ValueField("new", new, True, packed)]))
        of = evolved(of, msgspec.structs.replace(of, value=ValueSchema(1, tuple(fields))))
        _fill(draw, of, stored)
    return Drawn(of, stored)


def _fill(draw: st.DrawFn, of: StateDescriptor, stored: dict[bytes, bytes]) -> None:
    codec = StateCodec(of)
    key = keys((*of.scan_key, *of.entry_key))
    row = st.tuples(*(st.none() | GIVEN[field.type] for field in of.value.fields))
    for at, values in draw(st.lists(st.tuples(key, row), max_size=8)):
        fields = [
            None if value is None else value_type(field.type).from_given(value)
            for field, value in zip(of.value.fields, values, strict=True)
        ]
        stored[codec.storage_key(at)] = encode_row(of.value.version, fields)


def leaves(of: StateDescriptor) -> st.SearchStrategy[Predicate]:
    """Comparisons of any field of the state."""
    places: list[tuple[FieldPath, st.SearchStrategy[Any] | None]] = [
        (FieldPath(column.name), KEY_VALUES[column.type]) for column in (*of.scan_key, *of.entry_key)
    ]
    for field in of.value.fields:
        if field.type.startswith(("array", "struct")):
            places.append((FieldPath(field.name), None))
        else:
            places.append((FieldPath(field.name), GIVEN[field.type] | _ALSO.get(field.type, GIVEN[field.type])))
        if field.type.startswith("struct"):
            places += [(FieldPath(field.name, inner), GIVEN.get(type_)) for inner, type_ in _INNER.items()]

    def leaf(place: tuple[FieldPath, st.SearchStrategy[Any] | None]) -> st.SearchStrategy[Predicate]:
        path, values = place
        null = st.just(IsNull(path))
        if values is None:
            return null
        compared = st.builds(Comparison, st.just(path), st.sampled_from(ComparedBy), values)
        return null | compared | st.builds(OneOf, st.just(path), st.lists(values, max_size=3).map(tuple))

    return st.sampled_from(places).flatmap(leaf)


def predicates(of: StateDescriptor) -> st.SearchStrategy[Predicate]:
    """Of any form."""
    return st.recursive(
        leaves(of),
        lambda inner: (
            st.builds(Not, inner)
            | st.builds(And, st.lists(inner, max_size=3).map(tuple))
            | st.builds(Or, st.lists(inner, max_size=3).map(tuple))
        ),
        max_leaves=6,
    )


def fields_of(codec: StateCodec, storage_key: bytes, row: bytes) -> dict[str, Any]:
    """All columns and fields as a reader gets them."""
    columns = (*codec.descriptor.scan_key, *codec.descriptor.entry_key)
    key, map_key = codec.entry(storage_key)
    named = {column.name: value for column, value in zip(columns, (*key, *map_key), strict=True)}
    return named | codec.decode_row(row).asdict()


def truth(predicate: Predicate, fields: Mapping[str, Any]) -> bool | None:
    """True, false, or None: unknown."""
    match predicate:
        case Not(part):
            known = truth(part, fields)
            return None if known is None else not known
        case And(parts):
            found = [truth(part, fields) for part in parts]
            return False if False in found else None if None in found else True
        case Or(parts):
            found = [truth(part, fields) for part in parts]
            return True if True in found else None if None in found else False
        case IsNull(path):
            return _value(path, fields) is None
        case OneOf(path, values):
            value = _value(path, fields)
            return None if value is None else any(ranked(value) == ranked(other) for other in values)
        case Comparison(path, operator, other):
            value = _value(path, fields)
            return None if value is None else _compared(ranked(value), operator, ranked(other))
    raise AssertionError(predicate)


def ranked(value: Any) -> Any:
    """What sorts and equals as the value does: NaN above all numbers, text by its bytes."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        return (1, 0) if value != value else (0, value)
    return value


def _compared(value: Any, operator: ComparedBy, other: Any) -> bool:
    below, same = value < other, value == other
    return {
        ComparedBy.EQUAL: same,
        ComparedBy.NOT_EQUAL: not same,
        ComparedBy.LESS: below,
        ComparedBy.AT_MOST: below or same,
        ComparedBy.GREATER: not (below or same),
        ComparedBy.AT_LEAST: not below,
    }[operator]


def _value(path: FieldPath, fields: Mapping[str, Any]) -> Any:
    value = fields[path.name]
    for name in path.inner:
        value = None if value is None else value[name]
    return value
