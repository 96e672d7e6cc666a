"""Whatever a predicate asks of whatever rows, it keeps those that a model of SQL's three values keeps."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.entry_filter import EntryFilter
from keyhole.model.predicates import Predicate
from keyhole.rpc.convert_predicates import predicate_from_proto, predicate_to_proto
from keyhole.v1 import predicate_pb2 as pb
from tests.support.predicate_model import Drawn, fields_of, predicates, states, truth

_asked: st.SearchStrategy[tuple[Drawn, Predicate]] = states().flatmap(
    lambda drawn: st.tuples(st.just(drawn), predicates(drawn.of))
)


@given(_asked)
def test_it_keeps_what_it_is_true_of_also_after_a_way_over_the_wire(asked: tuple[Drawn, Any]) -> None:
    (of, stored), predicate = asked
    codec, entries = StateCodec(of), list(stored.items())
    expected = [entry for entry in entries if truth(predicate, fields_of(codec, *entry)) is True]
    kept = EntryFilter(of, predicate)
    assert kept.kept(entries) == expected
    assert [entry for entry in entries if kept.passes(*entry)] == expected
    sent = pb.Predicate.FromString(predicate_to_proto(predicate).SerializeToString())
    assert EntryFilter(of, predicate_from_proto(sent)).kept(entries) == expected


@given(_asked)
def test_of_it_and_its_opposite_one_is_true_where_it_is_known(asked: tuple[Drawn, Any]) -> None:
    (of, stored), predicate = asked
    codec, entries = StateCodec(of), list(stored.items())
    kept, others = EntryFilter(of, predicate).kept(entries), EntryFilter(of, ~predicate).kept(entries)
    unknown = [entry for entry in entries if truth(predicate, fields_of(codec, *entry)) is None]
    assert sorted([*kept, *others, *unknown]) == sorted(entries)
