"""What Spark's mapInArrow really hands over is encoded, for every type a state holds, and comes back as it was."""

from __future__ import annotations

import datetime as dt
import functools
import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.columnar import encode
from keyhole.encoding.murmur3 import key_group
from keyhole.model.state import KeyType, StateDescriptor
from keyhole.spark.declaration.declared import Declaration
from keyhole.spark.declaration.schema import describe

MOMENT = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
LOCAL = MOMENT.replace(tzinfo=None)
# New York's clock showed 01:30 twice that night: at 05:30 and at 06:30 UTC.
TWICE = [dt.datetime(2020, 11, 1, hour, 30, tzinfo=dt.UTC) for hour in (5, 6)]

# In New York the first of them is before the year 1, in Tokyo the last one after the year 9999.
FIRST, LAST = dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
SQL_FIRST, SQL_LAST = "timestamp'0001-01-01 00:00:00 UTC'", "timestamp'9999-12-31 23:59:59.999999 UTC'"

# By SQL expression: what a reader in Python gets.
VALUES: dict[str, Any] = {
    "true": True,
    "cast(-128 as tinyint)": -128,
    "cast(-32768 as smallint)": -32768,
    "cast(-2147483648 as int)": -(2**31),
    "cast('-9223372036854775808' as bigint)": -(2**63),
    "cast('Infinity' as float)": math.inf,
    "cast(0.1 as double)": 0.1,
    "cast('0' as decimal(38,10))": Decimal("0E-10"),
    "cast('-99999999999999999999999999999999999.999' as decimal(38,3))": Decimal("-" + "9" * 35 + ".999"),
    "'日本'": "日本",
    "x'00ff'": b"\0\xff",
    "date'1969-12-31'": dt.date(1969, 12, 31),
    "timestamp'1969-12-31 23:59:59.999999 UTC'": MOMENT,
    "timestamp_ntz'1969-12-31 23:59:59.999999'": LOCAL,
    "array(timestamp'2020-11-01 05:30:00 UTC', timestamp'2020-11-01 06:30:00 UTC', null)": (*TWICE, None),
    SQL_FIRST: FIRST,
    SQL_LAST: LAST,
    f"array({SQL_FIRST}, {SQL_LAST}, null)": (FIRST, LAST, None),
    f"map({SQL_FIRST}, named_struct('at', array({SQL_LAST})))": {FIRST: {"at": (LAST,)}},
    "array(array(timestamp_ntz'1969-12-31 23:59:59.999999'))": ((LOCAL,),),
    "map(date'2020-02-29', cast(1.5 as decimal(3,1)), date'1582-10-15', null)": {
        dt.date(2020, 2, 29): Decimal("1.5"),
        dt.date(1582, 10, 15): None,
    },
    "map(1, array('a', null))": {1: ("a", None)},
    "map(named_struct('a', 1), x'01')": {1: b"\1"},
    "named_struct('a b', 1, 'class', named_struct('x', cast(null as double), 'y', map('k', date'1970-01-01')))": {
        "a b": 1,
        "class": {"x": None, "y": {"k": dt.date(1970, 1, 1)}},
    },
}
KEYS: dict[KeyType, tuple[str, Any]] = {
    KeyType.STRING: ("'é\\u0000'", "é\0"),
    KeyType.BINARY: ("x'00ff80'", b"\0\xff\x80"),
    KeyType.BOOLEAN: ("true", True),
    KeyType.SMALLINT: ("cast(-3 as smallint)", -3),
    KeyType.INT: ("cast(-4 as int)", -4),
    KeyType.BIGINT: ("cast(-5 as bigint)", -5),
    KeyType.DATE: ("date'1900-01-01'", dt.date(1900, 1, 1)),
    KeyType.TIMESTAMP: ("timestamp'1969-12-31 23:59:59.999999 UTC'", MOMENT),
}


def stored(data: DataFrame, descriptor: StateDescriptor) -> list[tuple[bytes, bytes]]:
    """The rows as the state server would be sent them."""

    def task(descriptor: StateDescriptor, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield encode(batch, descriptor)

    encoded = data.mapInArrow(functools.partial(task, descriptor), "storage_key binary, value binary")
    return [(bytes(row.storage_key), bytes(row.value)) for row in encoded.collect()]


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Tokyo"])
def zoned(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The session, in a time zone: what is stored does not depend on it."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


def test_every_value_type_and_key_type_comes_back_from_what_spark_hands_over(zoned: SparkSession) -> None:
    keys = [f"{expression} as key_{kind}" for kind, (expression, _) in KEYS.items()]
    present = [f"{expression} as v{number}" for number, expression in enumerate(VALUES)]
    absent = [f"if(rand() < 2, null, {expression}) as n{number}" for number, expression in enumerate(VALUES)]
    data = zoned.range(1).selectExpr(*keys, *present, *absent)
    names = tuple(f"key_{kind}" for kind in KEYS)
    descriptor = describe(Declaration("state", names, 64, None, None), "application", "query", data.schema)
    codec = StateCodec(descriptor)

    ((storage_key, value),) = stored(data, descriptor)

    key = tuple(value for _, value in KEYS.values())
    assert codec.key(storage_key) == key
    assert codec.storage_key(key) == storage_key
    assert int.from_bytes(storage_key[:2], "big") == key_group(key, list(KEYS), 64)
    row = codec.decode_row(value).asdict()
    assert [plain(row[f"v{number}"]) for number in range(len(VALUES))] == [plain(value) for value in VALUES.values()]
    assert [row[f"n{number}"] for number in range(len(VALUES))] == [None] * len(VALUES)


def plain(value: Any) -> Any:
    """Tuples as lists; a mapping whose keys are rows of one field by that field."""
    if isinstance(value, dict):
        return {getattr(key, "a", key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
