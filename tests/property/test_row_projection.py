"""Whatever fields of whatever rows are asked for, they are those of the whole row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.row_codec import RowCodec, encode_row
from keyhole.encoding.row_projection import RowProjection
from keyhole.model.state import ValueField, ValueSchema
from tests.support.predicate_model import states
from tests.support.states import descriptor


@given(st.data())
def test_a_cut_row_has_the_fields_of_the_whole_one_in_the_order_asked_for(data: st.DataObject) -> None:
    of, stored = data.draw(states())
    names = [field.name for field in of.value.fields]
    fields = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    projection = RowProjection(of, fields)
    whole, cut = StateCodec(of), RowCodec(projection.descriptor)
    rows = list(stored.values())
    for row, short in zip(rows, projection.rows(rows), strict=True):
        read = cut.decode(short)
        assert tuple(read) == tuple(fields)
        for name in fields:
            assert repr(read[name]) == repr(whole.decode_row(row)[name])  # NaN, too


def test_a_row_that_was_cut_before_a_field_was_added_is_read_by_whoever_knows_of_it() -> None:
    """A server evolves a moment before, or after, those who read what it has sent."""
    number, text = ValueField("n", "int"), ValueField("s", "string")
    before = descriptor(value=ValueSchema(1, (number, text)))
    wider, added = ValueField("n", "bigint"), ValueField("new", "double")
    after = descriptor(value=ValueSchema(2, (added, wider, text)), earlier=(before.value,))
    (cut,) = RowProjection(before, ["s", "n"]).rows([encode_row(1, [7, "seven"])])
    read = RowCodec(RowProjection(after, ["s", "n"]).descriptor).decode(cut)
    assert (read["s"], read["n"]) == ("seven", 7)
    assert RowProjection(after, ["new"]).descriptor.earlier == ()
