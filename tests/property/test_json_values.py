"""A value that came as JSON is stored as the one that was written as JSON, of any type; what is no value is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.json_values import JsonRows, json_reader
from keyhole.encoding.row_codec import encode_row
from keyhole.encoding.value_types import DAYS, MICROS
from keyhole.errors import ValueMismatch
from keyhole.model.state import ValueField, ValueSchema
from tests.support.states import descriptor

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-128, 127),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=True),
    "decimal(38,18)": st.decimals(-(10**19), 10**19, places=18).map(lambda value: f"{value:.18f}"),
    "string": TEXT,
    "binary": st.binary(max_size=5),
    "date": st.integers(DAYS.start, DAYS.stop - 1),
    "timestamp": st.integers(MICROS.start, MICROS.stop - 1),
    "timestamp_ntz": st.integers(MICROS.start, MICROS.stop - 1),
}
TYPES = st.recursive(
    st.sampled_from(sorted(SCALARS)),
    lambda inner: st.one_of(
        inner.map(lambda one: f"array<{one}>"),
        st.tuples(st.sampled_from(["string", "int", "date"]), inner).map(lambda pair: f"map<{pair[0]},{pair[1]}>"),
        st.tuples(inner, inner).map(lambda pair: f"struct<a:{pair[0]},b b:{pair[1]}>"),
    ),
    max_leaves=4,
)


def _stored(kind: str) -> st.SearchStrategy[Any]:
    """Values of a type as they are stored; null, too."""
    if kind in SCALARS:
        return st.none() | SCALARS[kind]
    inside = kind[kind.index("<") + 1 : -1]
    if kind.startswith("array"):
        return st.lists(_stored(inside), max_size=3)
    if kind.startswith("map"):
        key, _, value = inside.partition(",")
        pairs = st.tuples(SCALARS[key], _stored(value)).map(list)
        return st.lists(pairs, max_size=3, unique_by=lambda pair: str(pair[0]))
    depth, cut = 0, 0
    for at, character in enumerate(inside):
        depth += (character in "<(") - (character in ">)")
        if character == "," and not depth:
            cut = at
    return st.tuples(_stored(inside[2:cut]), _stored(inside[cut + 5 :])).map(list)


def _of(kind: str) -> tuple[StateCodec, JsonRows]:
    of = descriptor(value=ValueSchema(1, (ValueField("v", kind),)))
    return StateCodec(of), JsonRows(of)


@given(st.data())
def test_what_a_row_is_in_json_is_read_back_as_the_row(data: st.DataObject) -> None:
    kind = data.draw(TYPES)
    codec, rows = _of(kind)
    row = encode_row(1, [data.draw(_stored(kind))])
    as_json = json.loads(codec.rows.to_json(row))["v"]
    assert repr(msgspec.msgpack.decode(rows.row(1, [as_json]))) == repr(msgspec.msgpack.decode(row))


@pytest.mark.parametrize(
    ("kind", "given", "stored"),
    [
        ("double", 3, 3.0),
        ("double", "NaN", math.nan),
        ("decimal(9,2)", 1.5, "1.50"),
        ("decimal(9,2)", -3, "-3.00"),
        ("decimal(9,2)", "1.5", "1.50"),
        ("date", 20_000, 20_000),
        ("timestamp", 1_700_000_000_000_000, 1_700_000_000_000_000),
        ("timestamp", "1970-01-01T01:00:00+01:00", 0),
        ("timestamp", "1970-01-01T00:00:01", 1_000_000),
        ("timestamp", "1970-01-01T00:00:01Z", 1_000_000),
        ("timestamp_ntz", "1970-01-01 00:00:01", 1_000_000),
        ("map<string,int>", {"a": 1, "": None}, [("a", 1), ("", None)]),
        ("map<int,string>", {"-7": "x"}, [(-7, "x")]),
        ("struct<a:int,b:string>", {"b": "x"}, [None, "x"]),
        ("struct<a:int,b:string>", [1, None], [1, None]),
    ],
)
def test_what_sql_makes_of_a_type_more_easily_is_taken_too(kind: str, given: object, stored: object) -> None:
    assert repr(json_reader(kind)(given)) == repr(stored)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("boolean", 1),
        ("boolean", "true"),
        ("int", 1.0),
        ("int", True),
        ("int", 2**31),
        ("int", "1"),
        ("double", "1.5"),
        ("double", True),
        ("double", "nan"),
        ("decimal(9,2)", "1.234"),
        ("decimal(9,2)", "1e3"),
        ("decimal(9,2)", "٤٢"),
        ("decimal(9,2)", True),
        ("decimal(38,2)", 0.1 + 0.2),
        ("string", 1),
        ("binary", "not base64!"),
        ("binary", "AA"),
        ("date", "2026-13-01"),
        ("date", DAYS.stop),
        ("date", True),
        ("timestamp", "yesterday"),
        ("timestamp", MICROS.stop),
        ("timestamp", 1.5),
        ("timestamp", "0001-01-01T00:00:00+01:00"),
        ("timestamp_ntz", "1970-01-01T00:00:00Z"),
        ("array<int>", {"0": 1}),
        ("array<int>", ["x"]),
        ("map<date,int>", {"2026-11-21": 1}),
        ("map<string,int>", [["a", 1], ["a", 2]]),
        ("map<string,int>", [["a"]]),
        ("map<int,int>", {"1_0": 1}),
        ("struct<a:int>", {"a": 1, "c": 2}),
        ("struct<a:int>", [1, 2]),
    ],
)
def test_what_is_no_value_of_the_type_is_refused_and_not_quoted(kind: str, given: object) -> None:
    _, rows = _of(kind)
    with pytest.raises(ValueMismatch, match=r"^field v of state app/\w+ is a .* none in any of its forms") as refused:
        rows.row(1, [given])
    assert refused.value.__cause__ is None
    if isinstance(given, str) and given:
        assert given not in refused.value.message


def test_a_row_is_of_a_schema_of_the_state_and_has_its_fields() -> None:
    of = descriptor(
        value=ValueSchema(2, (ValueField("a", "int", nullable=False), ValueField("b", "string"))),
        earlier=(ValueSchema(1, (ValueField("a", "int", nullable=False),)),),
    )
    rows = JsonRows(of)
    assert msgspec.msgpack.decode(rows.row(1, [7])) == [1, 7]
    assert msgspec.msgpack.decode(rows.row(2, [7, None])) == [2, 7, None]
    with pytest.raises(ValueMismatch, match="has 2 fields, and 1 came"):
        rows.row(2, [7])
    with pytest.raises(ValueMismatch, match=r"field a of state .* is null, and may not be"):
        rows.row(1, [None])
    with pytest.raises(ValueMismatch, match="has no schema version 3; it has 1, 2"):
        rows.row(3, [7])
