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


@pytest.mark.parametrize(("value", "kind"), [("x", "str"), (3, "int"), (None, "NoneType"), ([1], "list")])
def test_what_is_no_bytes_is_refused(value: Any, kind: str) -> None:
    with pytest.raises(ValueMismatch, match=f"codec of state .* gave a {kind}; it must give bytes"):
        list(Encoding(Gives(value), ("v",)).encoded([ROWS], STATE))
