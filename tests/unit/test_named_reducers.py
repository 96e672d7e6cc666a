"""The fields of a reducing state that have names of their own: what a job writes, the descriptor, and the SQL."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pyspark.sql import types as spark

from keyhole.config import JobConfig
from keyhole.encoding.reducers import REDUCERS, parse
from keyhole.errors import InvalidConfiguration, KeyMismatch, ValueMismatch
from keyhole.model.state import StateDescriptor, ValueField
from keyhole.spark import queryable, reductions
from keyhole.spark.declaration.declared import Declaration
from keyhole.spark.declaration.schema import describe
from keyhole.spark.reductions import Reduction, count, last, max_by
from keyhole.spark.write_path.state_rows import reduced_column
from keyhole.spark.write_path.update_records import update_columns

CONFIG = JobConfig(application="shop", servers=("127.0.0.1:1",), bootstrap_servers="127.0.0.1:2")
SCHEMA = (
    spark.StructType()
    .add("customer", spark.StringType())
    .add("amount", spark.DoubleType())
    .add("at", spark.TimestampType())
    .add("note", spark.StringType())
)
Given = Mapping[str, Reduction | str]


def declared(given: Given) -> Declaration:
    (part,) = queryable.reducing("totals", key="customer", reducers=given, config=CONFIG).parts
    return part.declaration


def described(given: Given, schema: spark.StructType = SCHEMA) -> StateDescriptor:
    return describe(declared(given), "shop", "q", schema)


def test_several_fields_of_one_column_have_names_of_their_own() -> None:
    of = described(
        {
            "orders": count(),
            "spent": reductions.sum("amount"),
            "largest": reductions.max("amount"),
            "notes": count("note"),
        }
    )
    assert of.value.fields == (
        ValueField("orders", "bigint", nullable=False),
        ValueField("spent", "double"),
        ValueField("largest", "double"),
        ValueField("notes", "bigint", nullable=False),
    )
    assert of.reducers == ("count", "sum", "max", "count")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"amount": "sum", "note": "count"}, {"amount": reductions.sum("amount"), "note": count("note")}),
        ({"at": "max", "amount": "max_by(at)"}, {"at": reductions.max("at"), "amount": max_by("amount", "at")}),
        ({"at": "max", "note": "last"}, {"at": "max", "note": last("note")}),
    ],
)
def test_a_state_that_is_there_may_be_written_either_way(before: Given, after: Given) -> None:
    assert declared(before) == declared(after)
    assert described(before) == described(after)
    assert declared(after).columns == ()


def test_the_other_column_of_max_by_is_found_by_the_field_that_keeps_it() -> None:
    given = {"newest": reductions.max("at"), "reading": max_by("amount", "at"), "oldest": reductions.min("at")}
    of = declared(given)
    assert of.reducers == ("max", "max_by(newest)", "min")
    fields = {field.name: field for field in described(given).value.fields}
    made = {
        name: reduced_column(fields[name], parse(reducer), of.column)
        for name, reducer in zip(fields, of.reducers, strict=True)
    }
    assert made == {
        "newest": "`at`",
        "reading": "CASE WHEN `at` IS NOT NULL THEN `amount` END",
        "oldest": "`at`",
    }


def test_updates_of_the_real_time_lane_read_the_columns_too() -> None:
    given: Given = {"orders": count(), "spent": reductions.sum("amount")}
    _, value = update_columns(described(given), "s", column=declared(given).column)
    assert "`amount`" in value
    assert "CASE WHEN `customer` IS NOT NULL" in value
    assert "`spent`" not in value


def test_there_is_a_function_for_each_reducer() -> None:
    assert {name for name in reductions.__all__ if name != "Reduction"} == REDUCERS.keys()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"r": max_by("amount", "at")}, r"'at', whose max must be a field, too: add \"max_at\": max\(\"at\"\)"),
        ({"r": max_by("amount", "at"), "at": reductions.min("at")}, r"whose max must be a field"),
        ({"spent": reductions.sum(12)}, "sum of field 'spent' is given 12; give it a column's name"),
        ({"customer": reductions.sum("amount")}, r"reducers names customer, which is part of the key.*count\(\)"),
        ({"_keyhole_op": reductions.sum("amount")}, "no field can be called '_keyhole_op'"),
        ({"": reductions.sum("amount")}, "no field can be called ''"),
        (
            {"Spent": reductions.sum("amount"), "spent": reductions.max("amount")},
            "the fields 'Spent', 'spent' differ by case alone",
        ),
        ({"spent": Reduction("mean", "amount")}, "'spent' has the reducer 'mean'; the reducers are sum, min"),
        ([reductions.sum("amount")], r"as {\"spent\": sum\(\"amount\"\)}"),
    ],
)
def test_what_can_not_be_is_refused_where_it_is_given(given: Given, says: str) -> None:
    with pytest.raises(InvalidConfiguration, match=says):
        declared(given)


def test_a_column_that_is_not_there_or_does_not_fit_is_named_as_it_is_in_the_rows() -> None:
    with pytest.raises(ValueMismatch, match="value column 'amuont' does not exist in the batch"):
        described({"spent": reductions.sum("amuont")})
    with pytest.raises(ValueMismatch, match="sum can't reduce column 'spent' of type string"):
        described({"spent": reductions.sum("note")})
    with pytest.raises(KeyMismatch):
        described({"spent": reductions.sum("amount")}, spark.StructType().add("amount", spark.DoubleType()))
