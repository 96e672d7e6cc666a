"""Defaults of fields that are added: what is taken, how it is read, and what is refused. Without a running Spark."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import msgspec
import pytest
from pyspark.sql import types as spark

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.row import FrozenMap, Row
from keyhole.encoding.row_codec import encode_row
from keyhole.errors import ValueMismatch
from keyhole.model.state import StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.spark.declaration.declared import Declaration
from keyhole.spark.declaration.schema import describe

TYPES: dict[str, spark.DataType] = {
    kind.simpleString(): kind
    for kind in (
        spark.BooleanType(),
        spark.ByteType(),
        spark.IntegerType(),
        spark.LongType(),
        spark.FloatType(),
        spark.DoubleType(),
        spark.DecimalType(10, 2),
        spark.DecimalType(38, 1),
        spark.DecimalType(4, 2),
        spark.DecimalType(2, 2),
        spark.StringType(),
        spark.BinaryType(),
        spark.DateType(),
        spark.TimestampType(),
        spark.TimestampNTZType(),
        spark.ArrayType(spark.IntegerType()),
        spark.MapType(spark.StringType(), spark.IntegerType()),
        spark.MapType(spark.StringType(), spark.DateType()),
        spark.StructType().add("a", spark.IntegerType()),
        spark.StructType().add("a", spark.IntegerType()).add("b", spark.ArrayType(spark.DateType())),
    )
}


def described(kind: str, defaults: dict[str, object], *, reducer: str = "", old: bool = False) -> StateDescriptor:
    """Key k, and a value field v of the type (after another one, old)."""
    schema = spark.StructType().add("k", spark.StringType())
    if old:
        schema = schema.add("old", spark.IntegerType())
    declaration = Declaration(
        "s",
        key=("k",),
        key_groups=4,
        value=("v",) if reducer else None,
        order_by=None,
        kind=StateKind.REDUCING if reducer else StateKind.VALUE,
        reducers=(reducer,) if reducer else (),
        defaults=defaults,
    )
    return describe(declaration, "app", "query", schema.add("v", TYPES[kind]))


DEFAULTS: list[tuple[str, object, object]] = [
    ("boolean", True, True),
    ("tinyint", -128, -128),
    ("bigint", (1 << 63) - 1, (1 << 63) - 1),
    ("float", 1, 1.0),
    ("double", -0.5, -0.5),
    ("decimal(10,2)", Decimal("1.5"), Decimal("1.50")),
    ("decimal(38,1)", int("9" * 37), Decimal("9" * 37 + ".0")),
    ("decimal(2,2)", Decimal("-0.99"), Decimal("-0.99")),
    ("string", "C", "C"),
    ("binary", b"\xff", b"\xff"),
    ("date", dt.date(2026, 11, 21), dt.date(2026, 11, 21)),
    (
        "timestamp",
        dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))),
        dt.datetime(2025, 12, 31, 23, tzinfo=dt.UTC),
    ),
    ("timestamp_ntz", dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1)),  # noqa: DTZ001 - timestamp_ntz
    ("array<int>", [1, None], (1, None)),
    ("map<string,date>", {"k": dt.date(1970, 1, 2)}, FrozenMap({"k": dt.date(1970, 1, 2)})),
    ("struct<a:int,b:array<date>>", {"b": [dt.date(1970, 1, 2)], "a": None}, {"a": None, "b": [dt.date(1970, 1, 2)]}),
]


@pytest.mark.parametrize(("kind", "given", "read"), DEFAULTS, ids=[kind for kind, *_ in DEFAULTS])
def test_a_default_is_read_as_a_value_of_its_type(kind: str, given: object, read: object) -> None:
    fields = (ValueField("old", "int"),)
    stored = described(kind, {"v": given}, old=True)
    of = msgspec.structs.replace(stored, value=ValueSchema(2, stored.value.fields), earlier=(ValueSchema(1, fields),))
    found = StateCodec(of).decode_row(encode_row(1, [7])).v
    assert (found.asdict() if isinstance(found, Row) else found) == read
    assert type(found) is type(read) or isinstance(found, Row)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("boolean", 1),
        ("tinyint", 128),
        ("int", True),
        ("int", 1.0),
        ("int", "1"),
        ("bigint", 1 << 63),
        ("double", "secret"),
        ("double", True),
        ("double", 10**400),
        ("decimal(10,2)", 1.5),
        ("decimal(10,2)", Decimal("1.234")),
        ("decimal(4,2)", Decimal("123")),
        ("decimal(10,2)", Decimal("NaN")),
        ("string", b"secret"),
        ("string", "\ud800"),
        ("binary", "secret"),
        ("date", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        ("date", "2026-01-01"),
        ("timestamp", dt.datetime(2026, 1, 1)),  # noqa: DTZ001 - what is refused
        ("timestamp", dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))),
        ("timestamp_ntz", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        ("array<int>", 1),
        ("array<int>", ["secret"]),
        ("map<string,int>", {None: 1}),
        ("map<string,int>", [("k", 1)]),
        ("struct<a:int>", {"a": 1, "b": 2}),
        ("struct<a:int>", {}),
    ],
)
def test_a_default_that_does_not_fit_its_field_is_refused_by_name_and_not_quoted(kind: str, given: object) -> None:
    with pytest.raises(ValueMismatch, match="the default of field 'v' is a") as caught:
        described(kind, {"v": given})
    assert "secret" not in caught.value.message
    assert kind in caught.value.message


def test_a_default_of_no_field_is_refused_by_name() -> None:
    with pytest.raises(ValueMismatch, match="defaults names 'w', which is no field of the value; it has v"):
        described("int", {"w": 1})


def test_null_is_what_a_field_without_a_default_has() -> None:
    assert described("int", {"v": None}) == described("int", {})


def test_the_default_of_a_field_that_is_reduced_is_of_the_fields_type() -> None:
    (field,) = described("string", {"v": 1 << 40}, reducer="count").value.fields
    assert msgspec.msgpack.decode(field.default) == 1 << 40
