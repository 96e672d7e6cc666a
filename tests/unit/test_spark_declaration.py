"""What queryable.value refuses, and what it makes of a batch's schema. Without a running Spark."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.sql import types as spark

from keyhole.config import JobConfig
from keyhole.errors import InvalidConfiguration, KeyholeError, KeyMismatch, StateChanged, ValueMismatch
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.protocol.registration import settled
from keyhole.spark import queryable
from keyhole.spark.declaration.batch_columns import value_names
from keyhole.spark.declaration.declared import Declaration
from keyhole.spark.declaration.schema import describe
from keyhole.spark.driver.feeding import check_increments
from keyhole.spark.driver.micro_batch import OutputMode

CONFIG = JobConfig("app", ("127.0.0.1:1",), "127.0.0.1:1")

SCHEMA = spark.StructType(
    [
        spark.StructField("sensor", spark.StringType(), nullable=False),
        spark.StructField("day", spark.DateType()),
        spark.StructField("at", spark.TimestampType()),
        spark.StructField("highest", spark.DoubleType(), nullable=False),
        spark.StructField("readings", spark.ArrayType(spark.StructType([spark.StructField("c", spark.FloatType())]))),
    ]
)


def declared(**changes: Any) -> Declaration:
    arguments: dict[str, Any] = {"key": ("sensor",), "key_groups": 64, "value": None, "order_by": None} | changes
    return Declaration("max_temperature", **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": ()}, "key is empty"),
        ({"key": ""}, "key is empty"),
        ({"key": ["a", "a"]}, "key names a column twice"),
        ({"key_groups": 0}, "key_groups is 0; it must be a whole number from 1 to 65536"),
        ({"key_groups": 65_537}, "key_groups is 65537"),
        ({"key_groups": True}, "key_groups is True"),
        ({"key_groups": 8.0}, "key_groups is 8.0"),
        ({"value": []}, "value is empty"),
        ({"value": ["v", "v"]}, "value names a column twice"),
        ({"value": ["v", "k"]}, "k is part of the key"),
        ({"order_by": "k"}, "k is part of the key"),
        ({"on_new_checkpoint": "ignore"}, "on_new_checkpoint is 'ignore'; it must be one of refuse, continue, reset"),
        ({"state": "control"}, "the name is reserved"),
        ({"state": "a.b"}, "the state's name is 'a.b'"),
        ({"state": ""}, "the state's name is ''"),
        ({"query": "one/two"}, "query is 'one/two'"),
        ({"standbys": -1}, "standbys is -1; it must be a whole number, 0 or more"),
        ({"standbys": True}, "standbys is True"),
        ({"config": JobConfig("app", ("{node}:1",), "")}, "state server '{node}:1' .* the fields are"),
        ({"config": JobConfig("my app", (), "")}, "KEYHOLE_JOB_APPLICATION"),
        ({"defaults": ["v"]}, "defaults says by column"),
        ({"value": ["v"], "defaults": {"w": 1}}, "defaults names 'w', which is not part of the value"),
    ],
)
def test_a_wrong_argument_is_refused_where_it_is_given(arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"state": "s", "key": "k", "config": CONFIG} | arguments
    with pytest.raises(InvalidConfiguration, match=message):
        queryable.value(**given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reducers": {}}, "name at least one"),
        ({"reducers": ["v"]}, "reducers says by field"),
        (
            {"reducers": {"v": "total"}},
            "column 'v' has the reducer 'total'; the reducers are sum, min,",
        ),
        ({"reducers": {"v": None}}, "column 'v' has the reducer None"),
        ({"reducers": {"k": "max"}}, "k, which is part of the key"),
        ({"defaults": {"w": 1}}, "defaults names 'w'"),
        ({"key_groups": 0}, "key_groups is 0"),
        ({"on_new_checkpoint": "ignore"}, "on_new_checkpoint is 'ignore'"),
        ({"state": "a.b"}, "the state's name is 'a.b'"),
    ],
)
def test_a_wrong_argument_of_a_reducing_state_is_refused_where_it_is_given(
    arguments: dict[str, Any], message: str
) -> None:
    given: dict[str, Any] = {"state": "s", "key": "k", "reducers": {"v": "sum"}, "config": CONFIG} | arguments
    with pytest.raises(InvalidConfiguration, match=message):
        queryable.reducing(**given)


def test_a_reducing_state_has_the_fields_that_its_reducers_make() -> None:
    schema = spark.StructType().add("k", spark.StringType()).add("n", spark.IntegerType(), nullable=False)
    schema = schema.add("at", spark.DateType()).add("list", spark.ArrayType(spark.StringType()))
    reducing = declared(
        kind=StateKind.REDUCING, key=("k",), value=("list", "n", "at"), reducers=("count", "sum", "max")
    )
    descriptor = describe(reducing, "app", "query", schema)
    assert (descriptor.kind, descriptor.reducers) == (StateKind.REDUCING, ("count", "sum", "max"))
    assert descriptor.value.fields == (
        ValueField("list", "bigint", nullable=False),
        ValueField("n", "bigint", nullable=False),
        ValueField("at", "date"),
    )


def test_a_column_that_its_reducer_does_not_take_is_refused_by_its_name() -> None:
    reducing = declared(kind=StateKind.REDUCING, key=("k",), value=("v",), reducers=("sum",))
    with pytest.raises(ValueMismatch, match="sum can't reduce column 'v' of type string; it takes a number"):
        describe(reducing, "app", "query", parse("k int, v string"))


@pytest.mark.parametrize(
    ("mode", "operators", "message"),
    [
        (
            OutputMode.COMPLETE,
            {"StateStoreRestoreExec", "StateStoreSaveExec"},
            "reducing state 'sums' can't be fed in complete mode",
        ),
        (OutputMode.UPDATE, {"StateStoreRestoreExec", "StateStoreSaveExec"}, "a streaming aggregation in update mode"),
        (OutputMode.UPDATE, {"SessionWindowStateStoreSaveExec"}, "a streaming aggregation in update mode"),
    ],
)
def test_running_results_are_not_reduced(mode: OutputMode, operators: set[str], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        check_increments("sums", mode, operators)


@pytest.mark.parametrize(
    ("mode", "operators"),
    [
        (OutputMode.UPDATE, set()),
        (OutputMode.APPEND, set()),
        (OutputMode.APPEND, {"StateStoreRestoreExec", "StateStoreSaveExec"}),
        (OutputMode.UPDATE, {"StreamingDeduplicateExec"}),
    ],
)
def test_rows_that_are_new_each_time_are_reduced(mode: OutputMode, operators: set[str]) -> None:
    check_increments("sums", mode, operators)


def test_the_job_is_configured_by_its_environment_where_no_configuration_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KEYHOLE_JOB_APPLICATION", raising=False)
    with pytest.raises(InvalidConfiguration, match="KEYHOLE_JOB_APPLICATION"):
        queryable.value("s", key="k")


def test_a_sink_can_not_be_sent_to_executors() -> None:
    with pytest.raises(TypeError, match=r"belongs to the driver.*give it to writeStream\.foreachBatch"):
        pickle.dumps(queryable.value("s", key="k", config=CONFIG))


def test_by_default_the_value_is_every_column_but_the_keys() -> None:
    descriptor = describe(declared(key=("sensor", "day")), "app", "query", SCHEMA)
    assert descriptor == StateDescriptor(
        application="app",
        state="max_temperature",
        query="query",
        kind=StateKind.VALUE,
        key_groups=64,
        key=(KeyColumn("sensor", KeyType.STRING), KeyColumn("day", KeyType.DATE)),
        value=ValueSchema(
            version=1,
            fields=(
                ValueField("at", "timestamp"),
                ValueField("highest", "double", nullable=False),
                ValueField("readings", "array<struct<c:float>>"),
            ),
        ),
    )


def test_the_column_that_orders_rows_is_stored_with_the_value() -> None:
    descriptor = describe(declared(value=("highest",), order_by="at"), "app", "query", SCHEMA)
    assert [field.name for field in descriptor.value.fields] == ["highest", "at"]
    assert descriptor.order_by == "at"
    already = describe(declared(value=("at", "highest"), order_by="at"), "app", "query", SCHEMA)
    assert [field.name for field in already.value.fields] == ["at", "highest"]


@pytest.mark.parametrize("kind", [StateKind.LIST, StateKind.AGGREGATING])
def test_the_column_that_orders_the_rows_of_a_batch_is_not_stored_unless_it_is_a_value(kind: StateKind) -> None:
    assert value_names(declared(kind=kind, value=("highest",), order_by="at"), SCHEMA) == ("highest",)
    assert "at" in value_names(declared(kind=kind, order_by="at"), SCHEMA)
    with pytest.raises(ValueMismatch, match="order_by column 'when' does not exist"):
        describe(declared(kind=kind, value=("highest",), order_by="when"), "app", "query", SCHEMA)


@pytest.mark.parametrize(
    ("kind", "key_type"),
    [
        (spark.StringType(), KeyType.STRING),
        (spark.BinaryType(), KeyType.BINARY),
        (spark.BooleanType(), KeyType.BOOLEAN),
        (spark.ShortType(), KeyType.SMALLINT),
        (spark.IntegerType(), KeyType.INT),
        (spark.LongType(), KeyType.BIGINT),
        (spark.DateType(), KeyType.DATE),
        (spark.TimestampType(), KeyType.TIMESTAMP),
    ],
)
def test_every_key_type_is_taken_by_sparks_name_of_it(kind: spark.DataType, key_type: KeyType) -> None:
    assert kind.simpleString() == key_type
    schema = spark.StructType().add("k", kind).add("v", spark.IntegerType())
    assert describe(declared(key=("k",)), "app", "query", schema).key == (KeyColumn("k", key_type),)


@pytest.mark.parametrize(
    ("schema", "changes", "error", "message"),
    [
        ("v int", {"key": ("k",)}, KeyMismatch, "key column 'k' does not exist in the batch, whose columns are v$"),
        (
            "k double, v int",
            {"key": ("k",)},
            KeyMismatch,
            "type double, which can't be a key; .* string, binary, boolean, smallint, int, bigint, date, timestamp",
        ),
        ("k tinyint, v int", {"key": ("k",)}, KeyMismatch, "tinyint"),
        ("k decimal(9,2), v int", {"key": ("k",)}, KeyMismatch, r"decimal\(9,2\)"),
        ("k timestamp_ntz, v int", {"key": ("k",)}, KeyMismatch, "timestamp_ntz"),
        ("k string collate UNICODE_CI, v int", {"key": ("k",)}, KeyMismatch, 'collation UNICODE_CI.*cast\\("string"'),
        ("k string", {"key": ("k",)}, ValueMismatch, "no column beside the key"),
        ("k string, v int", {"key": ("k",), "value": ("w",)}, ValueMismatch, "value column 'w' does not exist"),
        ("k string, v int", {"key": ("k",), "order_by": "at"}, ValueMismatch, "order_by column 'at' does not exist"),
        ("k string, v variant", {"key": ("k",)}, ValueMismatch, "'v' is of type variant"),
        ("k string, v array<interval day>", {"key": ("k",)}, ValueMismatch, "interval day can't be stored"),
        ("k string, v map<string,void>", {"key": ("k",)}, ValueMismatch, "void can't be stored"),
        ("k string, v string collate UTF8_LCASE", {"key": ("k",)}, ValueMismatch, "collation UTF8_LCASE"),
        ("k string, v struct<`a:b`:int>", {"key": ("k",)}, ValueMismatch, "field name 'a:b'"),
        (
            "k string, _keyhole_op string",
            {"key": ("k",)},
            ValueMismatch,
            "'_keyhole_op': names .* Keyhole's; rename it",
        ),
        ("_Keyhole_k string, v int", {"key": ("_Keyhole_k",)}, KeyMismatch, "names that begin with _keyhole_ are"),
        ("k string, v array<int>", {"key": ("k",), "order_by": "v"}, ValueMismatch, "order_by column 'v'.*no highest"),
    ],
)
def test_a_column_that_does_not_fit_is_refused_by_its_name(
    schema: str, changes: dict[str, Any], error: type[KeyholeError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        describe(declared(**changes), "app", "query", parse(schema))
    assert "max_temperature" in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "changes", "difference"),
    [
        ("k string, v bigint", {"key_groups": 32}, "key_groups was 64, is 32"),
        ("k string, v double", {}, "field 'v' was bigint and is double"),
        ("k bigint, v bigint", {}, "key was k string, is k bigint"),
        ("k string, v bigint", {"order_by": "v"}, "order_by was none, is v"),
    ],
)
def test_a_state_that_is_declared_otherwise_is_refused_with_the_difference(
    schema: str, changes: dict[str, Any], difference: str
) -> None:
    before = describe(declared(key=("k",)), "app", "query", parse("k string, v bigint"))
    now = describe(declared(key=("k",), **changes), "app", "query", parse(schema))
    with pytest.raises(StateChanged, match=difference):
        settled(before, now)


def test_a_column_that_exists_twice_is_refused() -> None:
    schema = parse("k string, v int, v int")
    with pytest.raises(ValueMismatch, match="'v' exists 2 times"):
        describe(declared(key=("k",)), "app", "query", schema)


def test_a_result_that_is_named_like_the_key_is_refused_by_its_name() -> None:
    of = declared(key=("k", "m"), value=("v",), kind=StateKind.AGGREGATING, result=parse("n bigint, m int, k string"))
    with pytest.raises(ValueMismatch, match=r"result names k, m, which is part of the key.* give the field another"):
        describe(of, "app", "query", parse("k string, m int, v int"))


def parse(text: str) -> spark.StructType:
    """The DDL forms above; Spark's own parser needs a JVM."""
    schema = spark.StructType()
    for column in text.split(", "):
        name, kind = column.split(" ", 1)
        schema = schema.add(name, TYPES.get(kind, kind))
    return schema


TYPES: dict[str, spark.DataType] = {
    "string": spark.StringType(),
    "double": spark.DoubleType(),
    "int": spark.IntegerType(),
    "bigint": spark.LongType(),
    "tinyint": spark.ByteType(),
    "decimal(9,2)": spark.DecimalType(9, 2),
    "timestamp_ntz": spark.TimestampNTZType(),
    "string collate UNICODE_CI": spark.StringType("UNICODE_CI"),
    "string collate UTF8_LCASE": spark.StringType("UTF8_LCASE"),
    "variant": spark.VariantType(),
    "array<int>": spark.ArrayType(spark.IntegerType()),
    "array<interval day>": spark.ArrayType(spark.DayTimeIntervalType(0, 0)),
    "map<string,void>": spark.MapType(spark.StringType(), spark.NullType()),
    "struct<`a:b`:int>": spark.StructType().add("a:b", spark.IntegerType()),
}
