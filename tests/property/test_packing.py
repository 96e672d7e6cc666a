"""Packed changes that are packed apart by partition: each is where Spark's hash puts its key, in its order."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark

from keyhole.encoding.columnar import Op
from keyhole.encoding.murmur3 import key_group
from keyhole.model.state import KeyColumn, KeyType, StateKind
from keyhole.spark.exposed import ExposedState
from keyhole.spark.worker.pack import Packer, repacked, unpacked

KEY = spark.StructType().add("k", "string").add("n", "integer")
COLUMNS = (KeyColumn("k", KeyType.STRING), KeyColumn("n", KeyType.INT))
TYPES = [column.type for column in COLUMNS]
VALUE = ExposedState("value", StateKind.VALUE, spark.StructType().add("number", "long"), spark.StructType())

Key = tuple[str | None, int | None]
keys = st.tuples(st.text(max_size=3) | st.none(), st.integers(-3, 3) | st.none())
sent = st.lists(st.tuples(st.sampled_from("ab"), st.lists(keys, min_size=1, max_size=20)), max_size=5)


@given(sent, st.integers(1, 7))
def test_changes_packed_apart_are_where_their_keys_belong_and_in_order(
    sent: list[tuple[str, list[Key]]], partitions: int
) -> None:
    number = 0
    expected: dict[tuple[str, Key], list[int]] = defaultdict(list)
    packed = []
    for state, of_row in sent:
        packer = Packer(VALUE.changes(KEY))
        for key in of_row:
            packer.add(Op.PUT, key, {"number": number})
            expected[state, key].append(number)
            number += 1
        packed += packer.take()
    columns = {
        "_keyhole_state": pa.array([state for state, _ in sent], pa.string()),
        "_keyhole_changes": pa.array(packed, pa.binary()),
        "_keyhole_order": pa.array(range(len(sent)), pa.int64()),
    }

    (apart,) = repacked(COLUMNS, partitions, [pa.record_batch(columns)])

    found: dict[tuple[str, Key], list[int]] = defaultdict(list)
    for row in sorted(apart.to_pylist(), key=lambda row: row["_keyhole_order"]):
        for rows in unpacked(pa.array([row["_keyhole_changes"]], pa.binary())):
            for change in rows.to_pylist():
                key = (change["k"], change["n"])
                found[row["_keyhole_state"], key].append(change["number"])
                if None not in key:
                    assert row["_keyhole_partition"] == key_group(key, TYPES, partitions)
    assert found == expected
