"""What a job's own codec may give, without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from keyhole.encoding.columnar import OP
from keyhole.errors import ValueMismatch
from keyhole.model.state import KeyColumn, KeyType, ValueField, ValueSchema
from keyhole.spark.declaration.value_codec import ENCODED, Encoding
from tests.support.states import descriptor

STATE = descriptor(key=(KeyColumn("k", KeyType.STRING),), value=ValueSchema(1, (ValueField(ENCODED, "binary"),)))
ROWS = pa.record_batch({"k": ["a", "b"], "v": [1, 2], OP: ["put", "delete"]})


class Gives:
    def __init__(self, value: Any) -> None:
        self._value = value

    def encode(self, row: Any) -> Any:
        assert row.v == 1, "of a row that deletes nothing is encoded"
        return self._value


@pytest.mark.parametrize("value", [b"x\x00", bytearray(b"x\x00")])
def test_its_bytes_take_the_place_of_the_columns(value: Any) -> None:
    (encoded,) = Encoding(Gives(value), ("v",)).encoded([ROWS], STATE)
    assert encoded.to_pydict() == {"k": ["a", "b"], OP: ["put", "delete"], ENCODED: [b"x\x00", b""]}


def test_of_a_row_that_deletes_the_other_columns_may_hold_what_no_value_could() -> None:
    days = pa.array([1, 4_000_000], pa.int32()).cast(pa.date32())  # the latter is in the year 12921
    rows = pa.record_batch({"k": ["a", "b"], "v": [1, 2], "d": days, OP: ["put", "delete"]})
    (encoded,) = Encoding(Gives(b"x"), ("v", "d")).encoded([rows], STATE)
    assert encoded.column(ENCODED).to_pylist() == [b"x", b""]
    with pytest.raises(ValueMismatch, match="outside the years 1 to 9999"):
        list(Encoding(Gives(b"x"), ("v", "d")).encoded([rows.set_column(3, OP, pa.array(["put", "put"]))], STATE))


@pytest.mark.parametrize(("value", "kind"), [("x", "str"), (3, "int"), (None, "NoneType"), ([1], "list")])
def test_what_is_no_bytes_is_refused(value: Any, kind: str) -> None:
    with pytest.raises(ValueMismatch, match=f"codec of state .* gave a {kind}; it must give bytes"):
        list(Encoding(Gives(value), ("v",)).encoded([ROWS], STATE))
