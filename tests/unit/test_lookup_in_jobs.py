"""How a task asks for the values of its rows: as many at once as fit, and in batches that are not too large."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from keyhole.encoding.row import row_class
from keyhole.model.read import Answer
from keyhole.rpc.convert import source_from_proto
from keyhole.spark.worker.looking_up import with_values
from keyhole.v1 import state_pb2

SOURCE = source_from_proto(state_pb2.Source())
VALUE = pa.struct([pa.field("data", pa.string()), pa.field("n", pa.int32())])
TARGET = pa.field("found", VALUE)
MOST_BYTES = 16 << 20


class Asked:
    """Answers by what it holds, and counts."""

    def __init__(self, held: dict[Any, str]) -> None:
        self._row = row_class([("data", str), ("n", int)], version=1)
        self._held = held
        self.calls: list[int] = []

    def get_many(self, keys: Sequence[Any]) -> list[Answer]:
        self.calls.append(len(keys))
        assert len(set(keys)) == len(keys)
        return [
            Answer(True, self._row(self._held[key], len(self._held[key])), SOURCE)
            if key in self._held
            else Answer(False, None, SOURCE)
            for key in keys
        ]


def enriched(asked: Asked, *batches: pa.RecordBatch, key: Sequence[str] = ("k",)) -> list[pa.RecordBatch]:
    found = list(with_values(asked.get_many, key, TARGET, batches))
    whole = pa.Table.from_batches(found).drop_columns("found")
    assert whole.equals(pa.Table.from_batches(batches)), "all rows, in their order"
    return found


def rows(*keys: str | None) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array(keys, pa.string()), "i": pa.array(range(len(keys)), pa.int64())})


def values(batches: list[pa.RecordBatch]) -> list[str | None]:
    return [of and of["data"] for batch in batches for of in batch.column("found").to_pylist()]


def test_small_values_are_soon_asked_for_by_the_thousand() -> None:
    names = [f"key-{number}" for number in range(20_000)]
    asked = Asked({name: f"of {name}" for name in names if not name.endswith("7")})
    found = enriched(asked, rows(*names[:15_000]), rows(*names[15_000:]))
    assert values(found) == [None if name.endswith("7") else f"of {name}" for name in names]
    assert asked.calls[:4] == [64, 256, 1024, 4096]
    assert len(asked.calls) == 9


def test_large_values_are_asked_for_a_few_at_a_time_and_stand_in_small_batches() -> None:
    names = [f"key-{number}" for number in range(300)]
    asked = Asked({name: name.ljust(300_000, ".") for name in names})
    found = enriched(asked, rows(*names))
    assert values(found) == [name.ljust(300_000, ".") for name in names]
    assert asked.calls[0] == 64
    assert max(asked.calls[1:]) <= MOST_BYTES // 300_000
    assert max(batch.nbytes for batch in found) <= MOST_BYTES + 100_000


def test_many_rows_with_the_same_large_value_are_not_in_one_batch() -> None:
    asked = Asked({"hot": "x" * (1 << 20), "small": "s"})
    found = enriched(asked, rows(*["hot", "small", None, "nobody"] * 50))
    assert values(found) == ["x" * (1 << 20), "s", None, None] * 50
    assert max(batch.nbytes for batch in found) <= MOST_BYTES + 100_000


def test_a_value_that_is_larger_than_a_batch_should_be_stands_alone() -> None:
    asked = Asked({"large": "x" * (MOST_BYTES + 1), "small": "s"})
    found = enriched(asked, rows("small", "large", "small", "large"))
    assert [batch.num_rows for batch in found] == [1, 1, 1, 1]


@pytest.mark.parametrize("keys", [[None, None], ["nobody"]])
def test_rows_without_values_are_there_with_nulls(keys: list[str | None]) -> None:
    assert values(enriched(Asked({}), rows(*keys))) == [None] * len(keys)


def test_keys_of_several_columns_are_tuples() -> None:
    batch = pa.record_batch({"a": pa.array(["x", "x", None]), "b": pa.array([1, 2, 1], pa.int32())})
    assert values(enriched(Asked({("x", 2): "found"}), batch, key=("a", "b"))) == [None, "found", None]
