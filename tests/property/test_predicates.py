"""Whatever a predicate asks of whatever rows, it keeps those that a model of SQL's three values keeps."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.entry_filter import EntryFilter
from keyhole.encoding.key_reading import entry_reader
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


@given(states())
def test_keys_are_read_in_one_go_as_they_are_read_column_by_column(drawn: Drawn) -> None:
    codec = StateCodec(drawn.of)
    read = entry_reader(codec)
    for storage_key in drawn.stored:
        key, map_key = codec.entry(storage_key)
        found_key, found_map_key = read(storage_key)
        assert (found_key if len(key) > 1 else (found_key,)) == key
        assert (found_map_key if len(map_key) > 1 else (found_map_key,) if map_key else ()) == map_key
        assert map_key or found_map_key is None
