"""Whatever a predicate asks of whatever rows, what it is true of is among the values by which an index is asked."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from keyhole.encoding.entry_filter import EntryFilter
from keyhole.encoding.index_ranges import IndexedValues, indexed_values
from keyhole.encoding.indexed_fields import MOST_VALUE_BYTES, IndexedRows, indexed_fields
from keyhole.encoding.predicate_binding import bound, is_compared
from keyhole.encoding.value_types import value_type
from keyhole.model.predicates import Predicate
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.model.type_names import parsed
from tests.support.predicate_model import GIVEN, Drawn, predicates, ranked, states


def with_indexes(of: StateDescriptor) -> StateDescriptor:
    """The state, indexed by all fields that can be."""
    names = tuple(field.name for field in of.value.fields if is_compared(parsed(field.type)))
    return msgspec.structs.replace(of, index=names)


def holds(asked: IndexedValues, value: bytes) -> bool:
    return any(part.first <= value < part.end for part in asked.ranges)


_asked: st.SearchStrategy[tuple[Drawn, Predicate]] = states().flatmap(
    lambda drawn: st.tuples(st.just(drawn), predicates(drawn.of))
)


@given(_asked)
def test_no_row_that_it_is_true_of_is_missed(asked: tuple[Drawn, Any]) -> None:
    drawn, predicate = asked
    of, entries = with_indexes(drawn.of), list(drawn.stored.items())
    fields = indexed_fields(of)
    if not fields:
        return
    rows = [row for _, row in entries]
    values = IndexedRows(of, fields).values(list(rows))
    for found in indexed_values(bound(predicate, of), fields):
        assert list(found.ranges) == sorted(found.ranges)
        assert all(part.first < part.end for part in found.ranges)
        value_of = dict(zip(drawn.stored, values[fields.index(found.field)], strict=True))
        for key, _ in EntryFilter(of, predicate).kept(entries):
            value = value_of[key]
            assert value is not None
            assert holds(found, value)


ORDERED = [
    *(kind for kind in GIVEN if is_compared(parsed(kind))),
    "decimal(38,10)",
]
_TEXTS = st.sampled_from(["", "\0", "\0\0", "a", "a\0", "a\0b", "ü", "x" * 62, "x" * 63, "x" * 64, "x" * 62 + "\0y"])
_MORE: dict[str, st.SearchStrategy[Any]] = {
    "string": _TEXTS | st.text(max_size=3),
    "binary": _TEXTS.map(str.encode) | st.binary(max_size=3),
    "decimal(38,10)": st.decimals(-(10**28) + 1, 10**28 - 1, places=10),
}


@given(
    st.sampled_from(ORDERED).flatmap(
        lambda kind: st.tuples(
            st.just(kind),
            st.lists(st.none() | _MORE.get(kind, st.nothing()) | GIVEN.get(kind, st.nothing()), min_size=2),
        )
    )
)
@example(("double", [0.0, -0.0, float("nan"), -float("nan"), float("inf"), 5e-324, -5e-324, -float("inf")]))
def test_bytes_have_the_order_of_the_values_and_none_begins_another(given_: tuple[str, list[Any]]) -> None:
    kind, values = given_
    of = _state_of(kind)
    (field,) = indexed_fields(of)
    stored = [None if value is None else value_type(kind).from_given(value) for value in values]
    places = sorted(zip(map(field.encode, stored), map(_place, values), strict=True))
    for (one, lower), (other, higher) in itertools.pairwise(places):
        assert lower <= higher
        assert (one == other) or (lower < higher and not other.startswith(one))
        assert (lower < higher) or one == other
        assert 1 <= len(one) <= MOST_VALUE_BYTES


def _place(value: Any) -> Any:
    return (0, 0) if value is None else (1, ranked(value))


def _state_of(kind: str) -> StateDescriptor:
    key, schema = (KeyColumn("k", KeyType.STRING),), ValueSchema(1, (ValueField("a", kind),))
    return StateDescriptor("app", "state", "main", StateKind.VALUE, 4, key, schema, topic_id="topic", index=("a",))


@given(
    st.decimals(-(10**40), 10**40, allow_nan=False) | st.sampled_from([Decimal("1E+999999"), Decimal("-1E-999999")]),
    st.decimals(-9999, 9999, places=2),
)
def test_what_a_decimal_can_not_be_stands_between_what_it_can(other: Decimal, value: Decimal) -> None:
    (field,) = indexed_fields(_state_of("decimal(6,2)"))
    stored, (asked, exact) = field.encode(f"{value:.2f}"), field.bound(other)
    assert (stored <= asked) if value <= other else (stored >= asked)
    assert stored != asked or not exact or value == other
