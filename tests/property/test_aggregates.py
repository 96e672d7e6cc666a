"""Whatever is computed of whatever rows, in whatever parts, it is what a model computes of all of them."""

from __future__ import annotations

import math
import re
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.encoding.aggregation import EntryAggregation, Partial
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import prefix_of
from keyhole.errors import TooLarge, ValueMismatch
from keyhole.model.aggregates import AggregateKind, AskedAggregate, top
from keyhole.model.predicates import FieldPath
from keyhole.model.state import StateDescriptor
from keyhole.rpc.convert_aggregates import (
    aggregate_to_proto,
    aggregates_from_proto,
    partial_from_proto,
    partial_to_proto,
)
from keyhole.v1 import predicate_pb2 as pb
from tests.support.entries import hourly, row
from tests.support.predicate_model import fields_of, ranked, states

_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


def types_of(of: StateDescriptor) -> dict[FieldPath, str]:
    """All fields that there are, and what they are."""
    found = {FieldPath(column.name): column.type.value for column in (*of.scan_key, *of.entry_key)}
    for field in of.value.fields:
        found[FieldPath(field.name)] = field.type.partition("(")[0].partition("<")[0]
        if field.type.startswith("struct"):
            found |= {FieldPath(field.name, (name,)): kind for name, kind in (("x", "int"), ("y", "double"))}
    return found


def of_path(path: FieldPath, fields: dict[str, Any]) -> Any:
    found = fields[path.name]
    for name in path.inner:
        found = None if found is None else found[name]
    return found


def modelled(of: AskedAggregate, kind: str, scale: int, entries: list[tuple[bytes, dict[str, Any]]]) -> Any:
    """Of entries by storage key."""

    if of.path is None:
        return len(entries)
    known = [(key, found) for key, fields in entries if (found := of_path(of.path, fields)) is not None]
    values = [found for _, found in known]
    if of.kind is AggregateKind.COUNT:
        return len(values)
    if of.kind is AggregateKind.TOP:
        in_order = sorted(known, key=lambda one: one[0][2:])
        in_order.sort(key=lambda one: ranked(one[1]), reverse=not of.smallest)
        return [key for key, _ in in_order[: of.entries]]
    if not values:
        return None
    match of.kind:
        case AggregateKind.MIN:
            return min(values, key=ranked)
        case AggregateKind.MAX:
            return max(values, key=ranked)
        case AggregateKind.SUM:
            return sum(values)
    if kind == "decimal":
        exact = sum(values) / Decimal(len(values))
        return exact.quantize(Decimal(1).scaleb(-(scale + 4)), ROUND_HALF_UP)
    return sum(values) / len(values)


def slack_of(of: AskedAggregate, entries: list[tuple[bytes, dict[str, Any]]]) -> float:
    """By how much a sum of floats may differ, that is added up in another order."""
    if of.path is None or of.kind not in (AggregateKind.SUM, AggregateKind.AVERAGE):
        return 0.0
    values = [of_path(of.path, fields) for _, fields in entries]
    return 1e-9 * sum(abs(value) for value in values if isinstance(value, float))


def same(found: Any, expected: Any, slack: float) -> bool:
    if not isinstance(expected, float):
        return bool(found == expected)
    if math.isnan(slack) or math.isinf(slack):
        # Which of infinity and NaN it is depends on the order.
        return isinstance(found, float)
    return (math.isnan(found) and math.isnan(expected)) or abs(found - expected) <= slack or found == expected


@given(st.data())
def test_what_parts_compute_is_together_what_the_model_computes(data: st.DataObject) -> None:
    of, stored = data.draw(states())
    types = types_of(of)
    paths = st.sampled_from(sorted(types, key=str))
    kinds = st.sampled_from(list(AggregateKind))
    asked = []
    for kind, path, entries, smallest in data.draw(
        st.lists(st.tuples(kinds, paths, st.integers(1, 4), st.booleans()), min_size=1, max_size=4)
    ):
        is_top = kind is AggregateKind.TOP
        asked.append(AskedAggregate(kind, path, entries if is_top else 0, smallest and is_top))
    asked.append(AskedAggregate(AggregateKind.COUNT))

    def fits(one: AskedAggregate) -> bool:
        kind = "bigint" if one.path is None else types[one.path]
        if one.kind in (AggregateKind.SUM, AggregateKind.AVERAGE):
            return kind in _NUMBERS
        return one.kind is AggregateKind.COUNT or kind not in ("array", "struct")

    for one in asked:
        if not fits(one):
            with pytest.raises(ValueMismatch, match=re.escape(f"'{one.path.name}") if one.path else ""):
                EntryAggregation(of, [one], 1 << 20)
    asked = [one for one in asked if fits(one)]
    sent = aggregates_from_proto(
        [pb.Aggregate.FromString(aggregate_to_proto(one).SerializeToString()) for one in asked]
    )
    assert sent == asked
    codec = StateCodec(of)
    whole = EntryAggregation(of, asked, 1 << 20)
    together = [Partial() for _ in asked]
    for group in range(of.key_groups):
        part = EntryAggregation(of, asked, 1 << 20)
        entries = sorted(entry for entry in stored.items() if entry[0].startswith(prefix_of(group)))
        # In pieces, as a server reads them.
        for at in range(0, len(entries), 2):
            keys, rows = [key for key, _ in entries[at : at + 2]], [row for _, row in entries[at : at + 2]]
            part.add(keys, rows)
        for bound, partial, sum_of in zip(part.bound, part.partials, together, strict=True):
            message = partial_to_proto(bound, partial, [entry.row for entry in partial.top])
            got = pb.PartialAggregate.FromString(message.SerializeToString())
            bound.merge(sum_of, partial_from_proto(bound, got, prefix_of(group)))
    everything = [(key, fields_of(codec, key, row)) for key, row in sorted(stored.items())]
    for bound, partial in zip(whole.bound, together, strict=True):
        kind = "bigint" if bound.of.path is None else types[bound.of.path]
        expected = modelled(bound.of, kind, bound.type.digits[1], everything)
        if bound.of.kind is AggregateKind.TOP:
            assert [entry.key for entry in partial.top] == expected
            assert [stored[entry.key] for entry in partial.top] == [entry.row for entry in partial.top]
        else:
            assert same(bound.result(partial), expected, slack_of(bound.of, everything)), bound.of


def test_of_equal_values_in_a_top_those_come_first_whose_keys_do() -> None:
    of = hourly()
    codec = StateCodec(of)
    stored = {codec.storage_key((f"sensor-{number}", 0)): row(1.0) for number in range(40)}
    computed = EntryAggregation(of, [top(40, "celsius")], 1 << 20)
    computed.add(sorted(stored), [row(1.0)] * 40)
    found = [codec.key(entry.key)[0] for entry in computed.partials[0].top]
    assert found == sorted(f"sensor-{number}" for number in range(40))


def test_rows_of_a_top_have_a_limit() -> None:
    computed = EntryAggregation(hourly(), [top(5, "celsius")], 3 * len(row(1.0)))
    computed.add([b"\0\0a\0\0" + bytes([at]) for at in range(3)], [row(1.0)] * 3)
    with pytest.raises(TooLarge, match="ask for fewer"):
        computed.add([b"\0\0b\0\0\1"], [row(1.0)])
