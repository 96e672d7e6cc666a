"""What a processor gives to its state, as a copy of what Spark stores."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql import types as spark

from keyhole.errors import ValueMismatch
from keyhole.spark.worker.state_values import Rows

NOON_UTC = datetime.datetime(2020, 1, 2, 12, tzinfo=datetime.UTC)
EAST, WEST = (datetime.timezone(datetime.timedelta(hours=hours)) for hours in (9, -5))
NOON = NOON_UTC.replace(tzinfo=None)
POINT = spark.StructType().add("x", "integer").add("y", "string")


def copied(kind: spark.DataType | str, value: Any) -> Any:
    """As the only field of a row."""
    return Rows("state 's'", spark.StructType().add("v", kind))((value,))["v"]


@pytest.mark.parametrize(
    ("kind", "value", "copy"),
    [
        ("boolean", True, True),
        ("boolean", np.bool_(False), False),
        ("byte", -128, -128),
        ("short", 32767, 32767),
        ("integer", np.int64(7), 7),
        ("long", 2**63 - 1, 2**63 - 1),
        ("float", 0.1, 0.1),
        ("double", np.float32(1.5), 1.5),
        ("string", "Zürich", "Zürich"),
        ("string", np.str_("x"), "x"),
        ("binary", bytearray(b"x"), b"x"),
        ("date", datetime.date(2020, 1, 2), datetime.date(2020, 1, 2)),
        ("date", NOON, datetime.date(2020, 1, 2)),
        (
            "timestamp",
            datetime.datetime(2020, 1, 2, 14, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
            NOON_UTC,
        ),
        ("timestamp", pd.Timestamp("2020-01-02T12:00:00Z"), NOON_UTC),
        ("timestamp_ntz", NOON, NOON),
        ("timestamp_ntz", NOON_UTC, NOON),
        (spark.DecimalType(10, 2), Decimal("1.239"), Decimal("1.24")),
        (spark.DecimalType(10, 2), Decimal("-0.125"), Decimal("-0.13")),
        (spark.ArrayType(spark.DoubleType()), (1.0, None), [1.0, None]),
        (spark.MapType(spark.StringType(), spark.DateType()), {"a": NOON, "b": None}, {"a": NOON.date(), "b": None}),
        (POINT, (1, "a"), {"x": 1, "y": "a"}),
        (POINT, Row(b=1, a="a"), {"x": 1, "y": "a"}),
        (POINT, {"y": "a"}, {"x": None, "y": "a"}),
        (spark.ArrayType(POINT), [[1, None]], [{"x": 1, "y": None}]),
        ("double", None, None),
    ],
)
def test_a_value_is_copied_as_spark_stores_it(kind: spark.DataType | str, value: Any, copy: Any) -> None:
    made = copied(kind, value)
    assert made == copy
    assert type(made) is type(copy)


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("double", 1, "takes no int"),  # Spark stores null
        ("double", True, "takes no bool"),
        ("integer", 1.0, "takes no float"),
        ("integer", True, "takes no bool"),
        ("integer", 2**40, "beyond its range"),  # 0
        ("byte", 128, "beyond its range"),
        ("boolean", 1, "takes no int"),
        ("string", 5, "takes no int"),  # '5'
        ("string", b"x", "takes no bytes"),
        ("binary", "x", "takes no str"),
        ("timestamp", NOON.date(), "takes no date"),
        ("timestamp", datetime.datetime(1, 1, 1, tzinfo=EAST), "takes no datetime outside the years 1 to 9999"),
        (
            "timestamp",
            datetime.datetime(9999, 12, 31, 23, tzinfo=WEST),
            "takes no datetime outside the years 1 to 9999",
        ),
        (spark.DecimalType(4, 2), Decimal("99.995"), "beyond its range"),
        (spark.DecimalType(4, 2), Decimal("NaN"), "no number"),
        (spark.DecimalType(4, 2), 1, "takes no int"),
        (spark.ArrayType(spark.DoubleType()), [1.0, 2], "takes no int"),
        (spark.ArrayType(spark.DoubleType()), np.array([1.0]), "takes no ndarray"),
        (spark.MapType(spark.StringType(), spark.DoubleType()), {"a": 1}, "takes no int"),
        (POINT, (1,), "takes no struct of 1 fields"),
        (POINT, 1, "takes no int"),
    ],
)
def test_a_value_that_spark_would_store_as_another_one_is_refused_by_the_fields_name(
    kind: spark.DataType | str, value: Any, why: str
) -> None:
    with pytest.raises(ValueMismatch, match=f"state 's': field 'v' is of type .*{why}.*Convert it") as refused:
        copied(kind, value)
    assert refused.value.facts["column"] == "v"
    assert refused.value.__cause__ is None, "what was given is in no error"


@pytest.mark.parametrize("values", [(1.0,), (1.0, 2.0, 3.0), 1.0, {"a": 1.0, "b": 2.0}, None])
def test_a_row_is_a_sequence_of_as_many_values_as_the_schema_has(values: Any) -> None:
    rows = Rows("state 's'", spark.StructType().add("a", "double").add("b", "double"))
    with pytest.raises(ValueMismatch, match="state 's' takes a tuple with one value for each of a, b"):
        rows(values)


def test_a_type_that_cannot_be_stored_is_refused_before_there_is_a_value() -> None:
    with pytest.raises(ValueMismatch, match=r"field 'v' is of type array<interval .*>; interval .* can't be exposed"):
        Rows("state 's'", spark.StructType().add("v", spark.ArrayType(spark.DayTimeIntervalType())))


def test_a_copy_has_no_part_in_common_with_the_value() -> None:
    kind = spark.MapType(spark.StringType(), spark.ArrayType(spark.DoubleType()))
    value = {"a": [1.0]}
    made = copied(kind, value)
    value["a"].append(2.0)
    value["b"] = []
    assert made == {"a": [1.0]}


def test_a_time_without_a_zone_is_in_the_workers_own(zone: Callable[[str], None]) -> None:
    zone("America/New_York")
    assert copied("timestamp", NOON) == datetime.datetime(2020, 1, 2, 17, tzinfo=datetime.UTC)


MIN = NOON.replace(year=1, month=1, day=1, hour=0)
MAX = NOON.replace(year=9999, month=12, day=31, hour=23, minute=59, second=59, microsecond=999_999)


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("UTC", MIN, MAX),
        # By the sun until 1883.
        ("America/New_York", MIN.replace(hour=4, minute=56, second=2), None),
        ("Asia/Tokyo", None, MAX.replace(hour=14)),
    ],
)
def test_the_first_and_the_last_time_without_a_zone_are_refused_only_where_utc_has_no_year_for_them(
    zone: Callable[[str], None], name: str, first: datetime.datetime | None, last: datetime.datetime | None
) -> None:
    zone(name)
    for given, made in ((MIN, first), (MAX, last)):
        if made is not None:
            assert copied("timestamp", given) == made.replace(tzinfo=datetime.UTC)
        else:
            with pytest.raises(ValueMismatch, match=r"takes no datetime outside the years 1 to 9999 \(UTC\)"):
                copied("timestamp", given)


@pytest.mark.parametrize(
    "moment", [NOON.replace(month=11, day=1, hour=1, minute=30), NOON.replace(month=3, day=8, hour=2, minute=30)]
)
def test_a_time_that_a_change_of_the_clocks_repeats_or_skips_is_the_one_that_spark_stores(
    zone: Callable[[str], None], moment: datetime.datetime
) -> None:
    zone("America/New_York")
    stored = spark.TimestampType().toInternal(moment)
    assert copied("timestamp", moment) == datetime.datetime.fromtimestamp(stored // 1_000_000, datetime.UTC)


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets this process's time zone."""

    def set_zone(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_zone
    monkeypatch.undo()
    time.tzset()
