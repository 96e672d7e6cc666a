"""Which names a job may give to columns, fields, states, applications and queries. Without a running Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import types as spark

from keyhole.config import JobConfig
from keyhole.encoding.codec import StateCodec
from keyhole.errors import InvalidConfiguration, KeyMismatch, ValueMismatch
from keyhole.model.state import StateKind
from keyhole.protocol.registration import settled
from keyhole.spark import queryable
from keyhole.spark.declaration.batch_columns import check_all_columns
from keyhole.spark.declaration.declared import Declaration
from keyhole.spark.declaration.schema import describe
from keyhole.spark.declaration.spark_types import spark_type, value_schema
from tests.support.hostile_names import NAMES, OF_FIELDS, OF_KEYS, OF_STATES, REFUSED, REFUSED_FIELDS, REFUSED_STATES
from tests.support.of_all import of_all

CONFIG = JobConfig("app", ("127.0.0.1:1",), "127.0.0.1:1")
INT = spark.IntegerType()
ROLES = ["key", "map_key", "value", "order_by", "op"]


def columns(*names: str) -> spark.StructType:
    return spark.StructType([spark.StructField(name, INT) for name in names])


def declared(role: str, name: str) -> Declaration:
    """A state that reads the column as that."""
    kind = StateKind.MAP if role == "map_key" else StateKind.VALUE
    arguments: dict[str, Any] = {"key": ("a key",), "value": ("a value",), "order_by": None}
    arguments[role] = (name,) if role in ("key", "map_key", "value") else name
    return Declaration("names", key_groups=4, kind=kind, **arguments)


def schema(role: str, name: str) -> spark.StructType:
    of = spark.StringType() if role == "op" else INT
    return columns("a key", "a value").add(name, of)


@of_all(OF_KEYS)
def test_a_column_of_any_role_may_have_the_name(name: str) -> None:
    for role in ROLES:
        described = settled(None, describe(declared(role, name), "app", "query", schema(role, name)))
        StateCodec(described)
    whole = describe(Declaration("names", ("a key",), 4, None, None), "app", "query", columns("a key", name))
    assert [field.name for field in whole.value.fields] == [name]


def test_a_value_column_may_have_no_name_at_all() -> None:
    described = describe(declared("value", ""), "app", "query", columns("a key", ""))
    assert [field.name for field in settled(None, described).value.fields] == [""]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_would_be_read_as_something_else_is_refused_by_it_and_by_the_state(name: str, role: str) -> None:
    if role == "op" and name.lower().startswith("_keyhole_"):
        return  # a processor's own
    with pytest.raises((KeyMismatch, ValueMismatch), match=REFUSED[name]) as caught:
        describe(declared(role, name), "app", "query", schema(role, name))
    assert f"state 'names': {role.replace('_key', ' key')} column {name!r}" in caught.value.message.replace(
        "the name of ", ""
    )
    assert caught.value.facts["column"] == name


def test_what_a_job_does_not_read_may_have_any_name() -> None:
    batch = columns("a key", "a value", *REFUSED, "id", "ID")
    describe(declared("value", "a value"), "app", "query", batch)


@of_all(OF_FIELDS)
def test_a_field_of_a_struct_may_have_the_name_and_spark_gets_it_back(name: str) -> None:
    struct = spark.StructType([spark.StructField(name, INT), spark.StructField("another", spark.DateType())])
    kinds = [struct, spark.ArrayType(struct), spark.MapType(spark.StringType(), struct)]
    given = columns("k")
    for number, kind in enumerate(kinds):
        given = given.add(f"v{number}", kind)
    described = settled(None, describe(Declaration("names", ("k",), 4, None, None), "app", "query", given))
    assert value_schema(described) == spark.StructType(given.fields[1:])


@of_all(REFUSED_FIELDS)
def test_a_field_of_a_struct_that_can_not_be_is_refused_by_the_column_and_the_state(name: str) -> None:
    struct = spark.StructType([spark.StructField(name, INT)])
    for kind in (
        struct,
        spark.ArrayType(struct),
        spark.MapType(spark.StringType(), spark.StructType().add("s", struct)),
    ):
        with pytest.raises(ValueMismatch, match=REFUSED_FIELDS[name]) as caught:
            describe(declared("value", "v"), "app", "query", columns("a key").add("v", kind))
        assert caught.value.message.startswith("state 'names': value column 'v'")


def test_two_fields_of_a_struct_that_have_one_name_are_refused_by_it() -> None:
    with pytest.raises(ValueMismatch, match="two of its fields have the name 'a'"):
        describe(declared("value", "v"), "app", "query", columns("a key").add("v", columns("a", "a")))
    # In a struct Spark tells them apart, and so does everybody else.
    describe(declared("value", "v"), "app", "query", columns("a key").add("v", columns("id", "ID")))


def test_the_result_of_an_aggregator_may_not_have_them_either() -> None:
    result = spark.StructType().add("v", columns(""))
    of = Declaration("names", ("k",), 4, None, None, kind=StateKind.AGGREGATING, result=result)
    with pytest.raises(ValueMismatch, match=r"state 'names': value column 'v'.*needs a name"):
        describe(of, "app", "query", columns("k", "x"))


@pytest.mark.parametrize("type_name", ["int", "decimal(10,2)", "array<map<string,struct<a b:int,type:timestamp_ntz>>>"])
def test_the_types_of_states_are_those_of_spark(type_name: str) -> None:
    assert spark_type(type_name).simpleString() == type_name


# --- names that Spark takes for one -----------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_a_column_that_spark_can_not_tell_from_another_is_refused_by_both_names(role: str) -> None:
    error = KeyMismatch if role in ("key", "map_key") else ValueMismatch
    batch = schema(role, "id").add("ID", INT)
    with pytest.raises(error, match="state 'names': the batch has the columns 'id' and 'ID', which are one name to"):
        describe(declared(role, "id"), "app", "query", batch)
    described = describe(declared(role, "id"), "app", "query", batch, lambda: True)
    assert described.state == "names"


def test_of_all_columns_none_may_be_another_one() -> None:
    with pytest.raises(ValueMismatch, match="'v' and 'V'"):
        describe(Declaration("names", ("k",), 4, None, None), "app", "query", columns("k", "v", "V"))


def test_whether_spark_minds_the_case_is_asked_only_where_it_matters() -> None:
    def asked() -> bool:
        raise AssertionError

    describe(declared("value", "a value"), "app", "query", columns("a key", "a value", "id", "ID"), asked)


@pytest.mark.parametrize("made", [{"kind": StateKind.AGGREGATING, "result": columns("n")}, {"encoded": True}])
def test_the_columns_that_an_aggregator_or_a_codec_is_given_are_looked_at_too(made: dict[str, Any]) -> None:
    of = Declaration("names", ("k",), 4, ("v",), None, **made)
    describe(of, "app", "query", columns("k", "v"))
    with pytest.raises(ValueMismatch, match="state 'names': value column 'v' does not exist in the batch"):
        describe(of, "app", "query", columns("k", "w"))
    with pytest.raises(ValueMismatch, match="'v' and 'V'"):
        describe(of, "app", "query", columns("k", "v", "V"))


def rows(*names: str, case_sensitive: bool = False) -> Any:
    conf = {"spark.sql.caseSensitive": str(case_sensitive).lower()}
    return SimpleNamespace(columns=[*names], sparkSession=SimpleNamespace(conf=conf))


def test_rows_that_python_gets_with_all_their_columns_have_each_name_once() -> None:
    check_all_columns("lookup of app/s", rows(*NAMES))
    check_all_columns("lookup of app/s", rows("id", "ID", case_sensitive=True))
    with pytest.raises(
        InvalidConfiguration, match="lookup of app/s: the rows have the columns 'id' and 'ID', which are"
    ):
        check_all_columns("lookup of app/s", rows("id", "ID"))
    with pytest.raises(InvalidConfiguration, match="'id' and 'id'"):
        check_all_columns("lookup of app/s", rows("id", "id", case_sensitive=True))
    with pytest.raises(InvalidConfiguration, match=r"lookup of app/s: the name of column .* holds a NUL character"):
        check_all_columns("lookup of app/s", rows("a\0b"))


def test_the_key_of_a_state_whose_value_is_encoded_is_not_called_as_that() -> None:
    class Packed:
        def encode(self, row: Any) -> bytes:
            return b""

    for names in ({"key": "value"}, {"key": "k", "map_key": "value"}):
        make: Any = queryable.map if "map_key" in names else queryable.value
        with pytest.raises(
            InvalidConfiguration, match="state 's': the key has a column 'value', as the field is called"
        ):
            make("s", **names, codec=Packed(), config=CONFIG)


# --- states, applications, queries ------------------------------------------------------------------------------------


@of_all(OF_STATES)
def test_a_state_an_application_and_a_query_may_have_the_name(name: str) -> None:
    config = JobConfig(name, ("127.0.0.1:1",), "127.0.0.1:1")
    sink = queryable.value(name, key="k", query=name, config=config)
    assert sink.config.application == name


@of_all(REFUSED_STATES)
def test_a_name_that_kafka_or_a_path_would_read_otherwise_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match="the state's name is"):
        queryable.value(name, key="k", config=CONFIG)
    with pytest.raises(InvalidConfiguration, match="query is"):
        queryable.value("s", key="k", query=name, config=CONFIG)
    with pytest.raises(InvalidConfiguration, match="the application's name is"):
        queryable.value("s", key="k", config=JobConfig(name, ("127.0.0.1:1",), "127.0.0.1:1"))
