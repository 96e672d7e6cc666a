"""Whatever fields of whatever rows are asked for, they are those of the whole row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.row_codec import RowCodec
from keyhole.encoding.row_projection import RowProjection
from tests.support.predicate_model import states


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
