"""Keys and rows as bytes: the vectors, what is refused, and that values can't be changed."""

from __future__ import annotations

import datetime as dt
import math
import operator
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from keyhole.encoding.codec import EntryRange, StateCodec
from keyhole.encoding.key_codec import KeyCodec, end_of_prefix
from keyhole.encoding.row import Row
from keyhole.encoding.row_codec import encode_row
from keyhole.encoding.value_types import value_type
from keyhole.errors import KeyMismatch, NullKey, ValueMismatch
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from tests.support.vectors import Vector, golden_vectors


def codec(*fields: tuple[str, str], key: tuple[KeyColumn, ...] = (KeyColumn("k", KeyType.STRING),)) -> StateCodec:
    schema = ValueSchema(1, tuple(ValueField(*field) for field in fields or (("a", "bigint"),)))
    return StateCodec(StateDescriptor("app", "state", "query", StateKind.VALUE, 64, key, schema))


@pytest.mark.parametrize("vector", golden_vectors()[::7], ids=lambda vector: ",".join(vector.types))
def test_storage_keys_are_the_vectors(vector: Vector) -> None:
    key = vector.values if len(vector.values) > 1 else vector.values[0]
    assert codec(key=vector.columns).storage_key(key) == vector.key_groups[64].to_bytes(2, "big") + vector.encoded


def test_every_encoded_key_is_the_vectors() -> None:
    for vector in golden_vectors():
        assert KeyCodec(vector.columns).encode(vector.values) == vector.encoded


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (KeyType.STRING, 1),
        (KeyType.STRING, b"a"),
        (KeyType.STRING, "a\ud800"),
        (KeyType.BINARY, "a"),
        (KeyType.BOOLEAN, 1),
        (KeyType.SMALLINT, 1 << 15),
        (KeyType.INT, 1 << 31),
        (KeyType.BIGINT, 1 << 63),
        (KeyType.BIGINT, True),
        (KeyType.BIGINT, 1.0),
        (KeyType.DATE, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        (KeyType.TIMESTAMP, dt.datetime(2026, 1, 1)),  # noqa: DTZ001 - what is refused
        (KeyType.TIMESTAMP, dt.date(2026, 1, 1)),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_refused_by_name_and_not_quoted(kind: KeyType, value: object) -> None:
    with pytest.raises(KeyMismatch, match=f"key column sensor is a {kind}") as caught:
        codec(key=(KeyColumn("sensor", kind),)).storage_key(value)
    assert repr(value) not in caught.value.message


def test_another_number_of_columns_is_refused_with_what_there_should_be() -> None:
    with pytest.raises(KeyMismatch, match="2 columns, the state's key has 1: k string"):
        codec().storage_key(("a", "b"))


def test_a_null_is_refused_by_its_column() -> None:
    with pytest.raises(NullKey, match="k"):
        codec().storage_key(None)


def test_every_type_comes_back_as_its_python_value() -> None:
    names = ["date", "timestamp", "timestamp_ntz", "decimal(10,2)", "array<date>", "map<string,array<int>>", "binary"]
    of = codec(*((f"f{n}", name) for n, name in enumerate(names)), ("s", "struct<x:double,y:struct<z:string>>"))
    stored = [3, 10**15, 10**15, "1.50", [5, None], [["k", [1, None]]], b"\xff", [1.5, ["deep"]]]
    row = of.decode_row(encode_row(1, stored))
    assert row.f0 == dt.date(1970, 1, 4)
    assert row.f1 == dt.datetime(2001, 9, 9, 1, 46, 40, tzinfo=dt.UTC)
    assert row.f2 == dt.datetime(2001, 9, 9, 1, 46, 40)  # noqa: DTZ001 - timestamp_ntz
    assert (row.f3, row.f4, dict(row.f5), row.f6) == (
        Decimal("1.50"),
        (dt.date(1970, 1, 6), None),
        {"k": (1, None)},
        b"\xff",
    )
    assert (row.s.x, row.s.y.z) == (1.5, "deep")
    assert row.asdict()["s"] == {"x": 1.5, "y": {"z": "deep"}}


def value_of_every_kind() -> Row:
    """A row whose fields are a number, and a list, a map and a struct that hold others."""
    names = [("a", "bigint"), ("l", "array<array<int>>"), ("m", "map<string,map<string,int>>"), ("s", "struct<x:int>")]
    return codec(*names).decode_row(encode_row(1, [1, [[1]], [["k", [["n", 1]]]], [1]]))


# Ways to change what is at a place in a value; one that the type doesn't even have is refused as well.
OF_ROWS: list[Callable[[Any], Any]] = [
    lambda row: setattr(row, next(iter(row)), 2),
    lambda row: setattr(row, "other", 2),
    lambda row: delattr(row, next(iter(row))),
    lambda row: operator.setitem(row, next(iter(row)), 2),
    lambda row: operator.delitem(row, next(iter(row))),
    lambda row: row.update({}),
    lambda row: row.clear(),
]
OF_LISTS: list[Callable[[Any], Any]] = [
    lambda of: operator.setitem(of, 0, 2),
    lambda of: operator.setitem(of, slice(0, 1), ()),
    lambda of: operator.delitem(of, 0),
    lambda of: setattr(of, "other", 2),
    lambda of: of.append(2),
    lambda of: of.extend((2,)),
    lambda of: of.insert(0, 2),
    lambda of: of.remove(of[0]),
    lambda of: of.pop(),
    lambda of: of.clear(),
    lambda of: of.sort(),
    lambda of: of.reverse(),
    lambda of: iter(of).remove(),
]
OF_MAPS: list[Callable[[Any], Any]] = [
    lambda of: operator.setitem(of, "k", 2),
    lambda of: operator.setitem(of, "new", 2),
    lambda of: operator.delitem(of, "k"),
    lambda of: operator.delitem(of, "n"),
    lambda of: setattr(of, "other", 2),
    lambda of: of.update({"k": 2}),
    lambda of: of.setdefault("new", 2),
    lambda of: of.pop("k"),
    lambda of: of.popitem(),
    lambda of: of.clear(),
    lambda of: operator.ior(of, {"k": 2}),
    lambda of: of.keys().remove("k"),
    lambda of: of.values().remove(2),
    lambda of: of.items().remove(("k", 2)),
    lambda of: iter(of).remove(),
]
PLACES: dict[str, tuple[Callable[[Row], Any], list[Callable[[Any], Any]]]] = {
    "row": (lambda row: row, OF_ROWS),
    "struct": (lambda row: row.s, OF_ROWS),
    "list": (lambda row: row.l, OF_LISTS),
    "list in a list": (lambda row: row.l[0], OF_LISTS),
    "map": (lambda row: row.m, OF_MAPS),
    "map in a map": (lambda row: row.m["k"], OF_MAPS),
}


@pytest.mark.parametrize(
    ("place", "number"), [(place, number) for place, (_, ways) in PLACES.items() for number in range(len(ways))]
)
def test_every_way_to_change_a_value_is_refused(place: str, number: int) -> None:
    """F63 to F79."""
    row = value_of_every_kind()
    at, ways = PLACES[place]
    with pytest.raises((AttributeError, TypeError)):
        ways[number](at(row))
    assert row == value_of_every_kind()


def test_what_a_value_is_made_a_dict_of_is_a_copy() -> None:
    row = value_of_every_kind()
    copy = row.asdict()
    copy["l"][0].append(2)
    copy["m"]["k"].clear()
    copy["s"]["x"] = 2
    assert row == value_of_every_kind()


def test_a_field_whose_name_is_no_identifier_is_had_by_its_name() -> None:
    row = codec(("max(t)", "double"), ("class", "int"), ("keys", "int")).decode_row(encode_row(1, [1.5, 2, 3]))
    assert [row[name] for name in row] == [1.5, 2, 3]
    assert row.asdict() == {"max(t)": 1.5, "class": 2, "keys": 3}
    with pytest.raises(KeyError, match="no field 'min'"):
        row["min"]
    with pytest.raises(AttributeError, match=r"the value has no field 'mix'; it has max\(t\), class, keys"):
        row.mix  # noqa: B018
    assert not hasattr(row, "_repr_html_")


@pytest.mark.parametrize("data", [b"", b"\x93\x01", encode_row(0, [1]), encode_row(1, []), encode_row(1, [1, 2])])
def test_a_row_of_another_schema_is_refused(data: bytes) -> None:
    with pytest.raises(ValueMismatch, match="app/state"):
        codec().decode_row(data)


def test_a_string_that_is_not_utf_8_is_refused_and_not_quoted() -> None:
    with pytest.raises(ValueMismatch) as caught:
        codec(("v", "string")).decode_row(b"\x92\x01\xa2\xff!")
    assert caught.value.__cause__ is None


def test_json_has_words_for_what_json_lacks() -> None:
    of = codec(("d", "double"), ("f", "float"), ("b", "binary"), ("t", "timestamp"), ("m", "map<int,double>"))
    text = of.rows.to_json(encode_row(1, [math.nan, -math.inf, b"\xff", 0, [[1, math.inf]]]))
    assert msgspec.json.decode(text) == {
        "d": "NaN",
        "f": "-Infinity",
        "b": "/w==",
        "t": "1970-01-01T00:00:00+00:00",
        "m": [[1, "Infinity"]],
    }


@pytest.mark.parametrize("name", ["void", "interval day", "variant", "array<>", "map<int>", "struct<a>", "int,int", ""])
def test_a_type_that_can_not_be_held_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueMismatch, match=r"docs/values\.md"):
        value_type(name)


def test_nulls_stand_for_themselves_everywhere() -> None:
    names: list[Any] = ["date", "decimal(10,2)", "array<date>", "map<string,date>", "struct<a:date>", "string"]
    of = codec(*((f"f{n}", name) for n, name in enumerate(names)))
    row = of.decode_row(encode_row(1, [None] * len(names)))
    assert [row[name] for name in row] == [None] * len(names)


@pytest.mark.parametrize(("name", "stored"), [("date", 10**9), ("timestamp", 10**18), ("decimal(10,2)", "secret")])
def test_a_stored_value_that_python_has_none_for_is_refused_and_not_quoted(name: str, stored: object) -> None:
    of = codec(("v", name))
    with pytest.raises(ValueMismatch) as caught:
        of.decode_row(encode_row(1, [stored]))
    assert caught.value.__cause__ is None
    assert str(stored) not in caught.value.message


def test_a_date_that_python_has_none_for_is_refused_as_json_too() -> None:
    with pytest.raises(ValueMismatch):
        codec(("v", "date")).rows.to_json(encode_row(1, [10**9]))


@pytest.mark.parametrize("key", ["secret\ud800", b"secret", 12])
def test_no_exception_behind_a_refused_key_holds_it(key: object) -> None:
    with pytest.raises(KeyMismatch) as caught:
        codec().storage_key(key)
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)


@pytest.mark.parametrize("kind", [KeyType.SMALLINT, KeyType.INT, KeyType.BIGINT])
def test_the_fast_way_for_whole_numbers_gives_what_the_general_way_gives(kind: KeyType) -> None:
    one, two = (KeyColumn("a", kind),), (KeyColumn("a", kind), KeyColumn("b", KeyType.BOOLEAN))
    bits = {KeyType.SMALLINT: 16, KeyType.INT: 32, KeyType.BIGINT: 64}[kind]
    for value in (-(1 << bits - 1), -1, 0, 1, (1 << bits - 1) - 1):
        key = codec(key=one).storage_key(value)
        assert key == codec(key=one).storage_key((value,))
        assert key[2:] + b"\1" == codec(key=two).storage_key((value, True))[2:]


def map_codec(*map_key: KeyType, kind: StateKind = StateKind.MAP) -> StateCodec:
    described = codec().descriptor
    columns = tuple(KeyColumn(f"m{number}", of) for number, of in enumerate(map_key))
    return StateCodec(msgspec.structs.replace(described, kind=kind, map_key=columns))


def test_the_bytes_of_an_entry_are_those_that_the_documentation_tells() -> None:
    group = codec().storage_key("a")[:2]
    of = map_codec(KeyType.STRING, KeyType.SMALLINT)
    assert of.prefix("a") == group + b"a\0\0"
    assert of.storage_key(("a", "b\0", 1)) == group + b"a\0\0" + b"b\0\xff\0\0" + b"\x80\x01"
    elements = map_codec(kind=StateKind.LIST)
    assert elements.storage_key(("a", 0)) == group + b"a\0\0" + b"\x80\0\0\0\0\0\0\0"


def test_a_range_of_entries_is_a_range_of_bytes_and_without_bounds_the_whole_key() -> None:
    of = map_codec(KeyType.STRING, KeyType.SMALLINT)
    prefix = of.prefix("a")
    assert of.entry_range("a", (), ()) == EntryRange(prefix, prefix, prefix[:-1] + b"\1")
    assert of.entry_range("a", ("b",), ("c", 1)) == EntryRange(prefix, prefix + b"b\0\0", prefix + b"c\0\0\x80\x01")


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"a", b"b"), (b"a\xff", b"b"), (b"\0\0", b"\0\1"), (b"\xff\xfe\xff\xff", b"\xff\xff"), (b"\xff\xff", None)],
)
def test_the_end_of_a_prefix_is_the_first_bytes_after_all_that_begin_so(prefix: bytes, end: bytes | None) -> None:
    assert end_of_prefix(prefix) == end


@pytest.mark.parametrize(
    ("values", "error"),
    [(("a", 1, 2), KeyMismatch), ((1,), KeyMismatch), (("a", None), NullKey), ((b"a",), KeyMismatch)],
)
def test_a_bound_that_does_not_fit_is_refused_and_not_quoted(
    values: tuple[object, ...], error: type[KeyMismatch]
) -> None:
    of = map_codec(KeyType.STRING, KeyType.SMALLINT)
    for bounds in ((values, ()), ((), values)):
        with pytest.raises(error, match=r"m0|m1") as caught:
            of.entry_range("a", *bounds)
        assert "'a'" not in caught.value.message
