"""Change rows of several states in one Arrow batch, as a task takes them apart."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from keyhole.errors import InvalidConfiguration
from keyhole.spark.changes import changes_in, changes_layout, changes_schema
from keyhole.spark.exposed import ExposedState, output_schema
from keyhole.spark.partitioning import HashLayout
from keyhole.types import StateKind

_NO_KEY = spark.StructType()
LAST = ExposedState("it's last", StateKind.VALUE, spark.StructType().add("v", "long"), _NO_KEY)
TIMES = ExposedState(
    "times", StateKind.MAP, spark.StructType().add("n", "long").add("s", "string"), spark.StructType().add("of", "long")
)
OUTPUT = output_schema(spark.StructType().add("own", "string"), spark.StructType().add("k", "string"), [LAST, TIMES])

# As keyhole.spark.changes.changes_of lets Spark give them to a task.
ROWS = pa.record_batch(
    {
        "_keyhole_state": ["it's last", "times", "it's last", "times"],
        "_keyhole_op": ["put", "put", "clear", "delete"],
        "k": ["a", "b", "a", "b"],
        "_keyhole_change_it's last": pa.array([{"v": 1}, None, None, None], pa.struct({"v": pa.int64()})),
        "_keyhole_change_times": pa.array(
            [None, {"of": 3, "n": 1, "s": None}, None, {"of": 4, "n": None, "s": None}],
            pa.struct({"of": pa.int64(), "n": pa.int64(), "s": pa.string()}),
        ),
    }
)


def test_each_state_gets_its_own_rows_and_columns_in_order() -> None:
    assert changes_in(ROWS, "it's last").to_pylist() == [
        {"_keyhole_op": "put", "k": "a", "v": 1},
        {"_keyhole_op": "clear", "k": "a", "v": None},
    ]
    assert changes_in(ROWS, "times").to_pylist() == [
        {"_keyhole_op": "put", "k": "b", "of": 3, "n": 1, "s": None},
        {"_keyhole_op": "delete", "k": "b", "of": 4, "n": None, "s": None},
    ]
    assert changes_in(ROWS.slice(1, 1), "it's last").num_rows == 0
    assert changes_in(ROWS.slice(3, 1), "times").to_pylist()[0]["of"] == 4


@pytest.mark.parametrize("state", [LAST, TIMES], ids=str)
def test_the_schema_tells_the_columns_that_a_task_finds(state: ExposedState) -> None:
    schema = changes_schema(state.name, OUTPUT)
    assert schema.names == changes_in(ROWS, state.name).schema.names
    assert schema["k"].dataType == spark.StringType()
    assert all(field.nullable for field in schema.fields)


def test_another_processors_batch_is_refused_by_name() -> None:
    with pytest.raises(InvalidConfiguration, match="no changes of state 'other': its processor doesn't expose it"):
        changes_schema("other", OUTPUT)
    with pytest.raises(InvalidConfiguration, match="not the output of a queryable processor"):
        changes_schema("times", spark.StructType().add("k", "string"))


def test_changes_are_where_their_rows_are() -> None:
    assert changes_layout(HashLayout(("_keyhole_key_k", "_keyhole_key_g"), 4)) == HashLayout(("k", "g"), 4)
    assert changes_layout(None) is None
    # By the processor's own rows, whose columns are null in change rows.
    assert changes_layout(HashLayout(("k",), 4)) is None
