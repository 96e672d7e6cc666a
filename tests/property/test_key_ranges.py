"""Whatever a predicate asks of whatever keys, what it is true of stands in the range of keys that is read for it."""

from __future__ import annotations

import math
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.predicate_binding import bound
from keyhole.encoding.selected_entries import usable_keys
from keyhole.encoding.storage_key import GROUP_BYTES
from keyhole.model.predicates import Field, FieldPath, FieldPlace, Predicate, field
from tests.support.entries import hourly
from tests.support.predicate_model import Drawn, fields_of, leaves, predicates, states, truth


def is_read(drawn: Drawn, predicate: Predicate, storage_key: bytes) -> bool:
    keys, key = usable_keys(drawn.of, predicate), storage_key[GROUP_BYTES:]
    return keys.first <= key and (keys.end is None or key < keys.end)


def test_a_number_that_no_key_can_be_is_compared_at_once_however_many_digits_it_has() -> None:
    """Of a Decimal the next whole number has as many: a server would count them for ever."""
    of, number = hourly(), field("m0")
    sensor = field("sensor") == "a"
    whole, least = usable_keys(of, sensor), bytes(4)
    for huge, below in (
        (Decimal("1E+999999999"), Decimal("-1E+999999999")),
        (math.inf, -math.inf),
        (1 << 70, -1 << 70),
    ):
        assert usable_keys(of, sensor & (number < huge)) == whole
        assert usable_keys(of, sensor & (number > below)) == whole._replace(first=whole.first + least)


@given(states().flatmap(lambda drawn: st.tuples(st.just(drawn), predicates(drawn.of) | leaves(drawn.of))))
def test_all_that_a_predicate_is_true_of_is_read(asked: tuple[Drawn, Predicate]) -> None:
    drawn, predicate = asked
    codec = StateCodec(drawn.of)
    bound(predicate, drawn.of)
    for storage_key, row in drawn.stored.items():
        if truth(predicate, fields_of(codec, storage_key, row)) is True:
            assert is_read(drawn, predicate, storage_key)


@given(states(), st.data())
def test_of_whole_keys_and_bounds_of_their_first_column_nothing_else_is_read(drawn: Drawn, data: st.DataObject) -> None:
    if not drawn.stored:
        return
    codec = StateCodec(drawn.of)
    columns = (*drawn.of.scan_key, *drawn.of.entry_key)
    asked = data.draw(st.sampled_from(sorted(drawn.stored)))
    key, map_key = codec.entry(asked)
    values = (*key, *map_key)
    fields = [Field(FieldPath(column.name, place=FieldPlace.KEY)) for column in columns]
    whole = fields[0] == values[0]
    for of, value in zip(fields[1:], values[1:], strict=True):
        whole &= of == value
    for other in drawn.stored:
        assert is_read(drawn, whole, other) is (other[GROUP_BYTES:] == asked[GROUP_BYTES:])
        others_key, _ = codec.entry(other)
        first = others_key[0]
        assert is_read(drawn, fields[0] < values[0], other) is (first < values[0])
        assert is_read(drawn, fields[0] <= values[0], other) is (first <= values[0])
        assert is_read(drawn, fields[0] > values[0], other) is (first > values[0])
        assert is_read(drawn, fields[0] >= values[0], other) is (first >= values[0])
        assert is_read(drawn, (fields[0] > values[0]) | (fields[0] == values[0]), other) is (first >= values[0])
