"""Change rows as they leave a processor's operator, and what its schema tells of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from keyhole.encoding.columnar import Op
from keyhole.errors import InvalidConfiguration
from keyhole.model.state import StateKind
from keyhole.spark.changes import changes_schema
from keyhole.spark.driver.layout import HashLayout
from keyhole.spark.exposed import ExposedState, output_schema, packed_key
from keyhole.spark.worker.pack import Packer, unpacked

_NO_KEY = spark.StructType()
LAST = ExposedState("it's last", StateKind.VALUE, spark.StructType().add("v", "long"), _NO_KEY)
TIMES = ExposedState(
    "times", StateKind.MAP, spark.StructType().add("n", "long").add("s", "string"), spark.StructType().add("of", "long")
)
OUTPUT = output_schema(spark.StructType().add("own", "string"), spark.StructType().add("k", "string"), [LAST, TIMES])

KEY = spark.StructType().add("k", "string")


def packed(state: ExposedState, *rows: tuple[Op, str | None, dict[str, Any]]) -> bytes:
    packer = Packer(state.changes(KEY))
    for op, key, entry in rows:
        packer.add(op, (key,), entry)
    (data,) = packer.take()
    assert packer.take() == []
    return data


def rows_of(*data: bytes) -> list[dict[str, Any]]:
    return [row for batch in unpacked(pa.array(data, pa.binary())) for row in batch.to_pylist()]


def test_a_state_s_rows_come_out_as_they_went_in_and_have_the_columns_that_the_schema_tells() -> None:
    data = packed(TIMES, (Op.PUT, "b", {"of": 3, "n": 1, "s": None}), (Op.DELETE, "b", {"of": 4}), (Op.CLEAR, "c", {}))
    assert rows_of(data, packed(LAST, (Op.PUT, "a", {"v": 1}))) == [
        {"_keyhole_op": "put", "k": "b", "of": 3, "n": 1, "s": None},
        {"_keyhole_op": "delete", "k": "b", "of": 4, "n": None, "s": None},
        {"_keyhole_op": "clear", "k": "c", "of": None, "n": None, "s": None},
        {"_keyhole_op": "put", "k": "a", "v": 1},
    ]
    schema = changes_schema("times", OUTPUT)
    assert schema.names == list(rows_of(data)[0])
    assert schema["k"].dataType == spark.StringType()
    assert all(field.nullable for field in schema.fields)


def test_what_is_large_inside_of_a_value_or_in_the_key_fills_a_piece_too() -> None:
    nested = spark.StructType().add("of", spark.ArrayType(spark.StructType().add("blob", "binary")))
    blobs = ExposedState("blobs", StateKind.VALUE, nested, _NO_KEY)
    packer = Packer(blobs.changes(KEY))
    packer.add(Op.PUT, ("a",), {"of": [{"blob": bytes(1 << 19)}] * 3})
    assert [len(piece) >> 20 for piece in packer.take(whole=False)] == [1]
    packer.add(Op.CLEAR, ("b" * (1 << 20),), {})
    assert len(packer.take(whole=False)) == 1
    assert packer.take() == []


def test_another_processors_batch_is_refused_by_name() -> None:
    with pytest.raises(InvalidConfiguration, match="no changes of state 'other': its processor doesn't expose it"):
        changes_schema("other", OUTPUT)
    with pytest.raises(InvalidConfiguration, match="not the output of a queryable processor"):
        changes_schema("times", spark.StructType().add("k", "string"))


def test_changes_are_where_their_rows_are() -> None:
    key = packed_key(["k", "g"])
    assert HashLayout(("_keyhole_key_k", "_keyhole_key_g"), 4).has_key_groups(key, 8)
    assert not HashLayout(("_keyhole_key_k", "_keyhole_key_g"), 4).has_key_groups(key, 6)
    # By the processor's own rows, whose columns are null in change rows.
    assert not HashLayout(("k", "g"), 4).has_key_groups(key, 8)
