"""Rows of numbers and booleans alone are read in one call: to what they come to field by field, refusals included."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.encoding.json_values import JsonRows, json_reader
from keyhole.errors import ValueMismatch
from keyhole.model.state import ValueField, ValueSchema
from tests.support.readings import descriptor

TYPES = ["boolean", "tinyint", "smallint", "int", "bigint", "double"]
_EDGES = [
    bound + by for bits in (8, 16, 32, 53, 64, 1024) for bound in (-(1 << bits - 1), 1 << bits - 1) for by in (-1, 0, 1)
]
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from(_EDGES),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "1", "", "secret"]),
    st.lists(st.integers(), max_size=1),
)


def _field_by_field(of: ValueField, value: Any) -> Any:
    if value is None:
        if not of.nullable:
            raise ValueError
        return None
    return json_reader(of.type)(value)


@given(st.lists(st.tuples(st.sampled_from(TYPES), st.booleans(), values), min_size=1, max_size=4))
def test_a_row_is_what_its_fields_come_to_one_by_one(given_fields: list[tuple[str, bool, Any]]) -> None:
    fields = tuple(ValueField(f"f{at}", kind, nullable) for at, (kind, nullable, _) in enumerate(given_fields))
    rows = JsonRows(msgspec.structs.replace(descriptor(), value=ValueSchema(1, fields)))
    # As JSON brings them.
    came = msgspec.json.decode(msgspec.json.encode([value for _, _, value in given_fields]))
    try:
        wanted = [_field_by_field(of, value) for of, value in zip(fields, came, strict=True)]
    except (ValueError, OverflowError):
        with pytest.raises(ValueMismatch, match="field f") as refused:
            rows.row(1, came)
        assert "secret" not in refused.value.message
        return
    found = msgspec.msgpack.decode(rows.row(1, came))
    assert repr(found) == repr([1, *wanted])


def test_another_number_of_fields_is_refused_as_before() -> None:
    with pytest.raises(ValueMismatch, match="has 2 fields, and 3 came"):
        JsonRows(descriptor()).row(1, [1.0, 1, 1])
