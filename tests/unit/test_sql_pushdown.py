"""What of a filter the servers test: never less than the filter lets through, and what it looks at."""

from __future__ import annotations

import datetime as dt
import functools
import math
import operator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.encoding.arrow_entries import entry_schema
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.entry_filter import EntryFilter
from keyhole.encoding.row_codec import encode_row
from keyhole.model.predicates import Predicate, field
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.sql.predicate_words import in_words
from keyhole.sql.pushdown import pushed

_TYPES = {
    "n": "bigint",
    "small": "smallint",
    "x": "double",
    "city": "string",
    "ok": "boolean",
    "day": "date",
    "at": "timestamp",
    "clock": "timestamp_ntz",
    "price": "decimal(10,2)",
    "place": "struct<floor:int>",
    "tags": "array<string>",
}
STATE = StateDescriptor(
    "shop",
    "orders",
    "q",
    StateKind.VALUE,
    4,
    (KeyColumn("k", KeyType.STRING),),
    ValueSchema(1, tuple(ValueField(name, kind) for name, kind in _TYPES.items())),
)
SCHEMA = entry_schema(STATE)
F = pc.field
_AT = dt.datetime(2026, 11, 27, 12, tzinfo=dt.UTC)
NULL = pc.scalar(pa.scalar(None, pa.bool_()))


@pytest.mark.parametrize(
    ("of", "where", "columns"),
    [
        (F("n") > 3, field("n") > 3, {"n"}),
        (pc.scalar(3) < F("n"), field("n") > 3, {"n"}),
        ((F("n") >= 3) & (F("x") < 2.5), (field("n") >= 3) & (field("x") < 2.5), {"n", "x"}),
        ((F("k") == "a") | (F("k") == "b"), (field("k") == "a") | (field("k") == "b"), {"k"}),
        (F("city").isin(["a", "b"]), field("city").is_in(["a", "b"]), {"city"}),
        (F("city") != "a", field("city") != "a", {"city"}),
        (F("n").is_null(), field("n").is_null(), {"n"}),
        (F("n").is_valid(), field("n").is_not_null(), {"n"}),
        (~(F("n") == 3), ~(field("n") == 3), {"n"}),
        (~F("city").isin(["a"]), ~(field("city").is_in(["a"]) & field("city").is_not_null()), {"city"}),
        (pc.if_else(F("city").is_valid(), F("city").isin(["a"]), NULL), field("city").is_in(["a"]), {"city"}),
        (~pc.if_else(F("city").is_valid(), F("city").isin(["a"]), NULL), ~field("city").is_in(["a"]), {"city"}),
        (
            pc.if_else(F("x").is_valid(), (F("x") == 0.0) | F("x").isin([1.0]), NULL),
            ((field("x") == 0.0) | field("x").is_in([1.0])) & field("x").is_not_null(),
            {"x"},
        ),
        (pc.if_else(F("city").is_valid(), F("city").isin(["a"]), F("n") > 1), None, {"n", "city"}),
        (pc.if_else(F("n") > 1, F("x") > 1, F("x") < 1), None, {"n", "x"}),
        (F("ok") == pc.scalar(True), field("ok") == True, {"ok"}),  # noqa: E712 - a predicate
        (F("day") == dt.date(2026, 11, 27), field("day") == dt.date(2026, 11, 27), {"day"}),
        (F("at") > _AT, field("at") > _AT, {"at"}),
        (F("clock") > _AT.replace(tzinfo=None), field("clock") > _AT.replace(tzinfo=None), {"clock"}),
        (F("price") >= Decimal("1.50"), field("price") >= Decimal("1.50"), {"price"}),
        (F("place", "floor") == 2, field("place", "floor") == 2, {"place"}),
        # What servers can't test is left to the scan: of an `and` the other parts are still theirs.
        (pc.utf8_length(F("city")) > 2, None, None),
        ((F("n") < F("n")) & (F("x") > 1), field("x") > 1, {"n", "x"}),
        ((F("n") > 3) | (F("n") < F("n")), None, {"n"}),
        (F("tags").is_null(), field("tags").is_null(), {"tags"}),
    ],
)
def test_a_filter_becomes_what_servers_can_test_of_it(
    of: pc.Expression, where: Predicate | None, columns: set[str] | None
) -> None:
    asked = pushed(of, SCHEMA, STATE)
    assert asked.where == where
    if columns is not None:
        assert asked.columns == columns


def test_a_filter_that_is_nested_deep_is_left_to_the_scan_and_takes_no_time() -> None:
    """Arrow writes forty terms as terabytes."""
    terms = functools.reduce(operator.or_, (F("n") == number for number in range(40)))
    assert pushed(terms, SCHEMA, STATE) == (None, None)
    few = functools.reduce(operator.or_, (F("n") == number for number in range(8)))
    assert pushed(few & (F("city") == "(" * 40), SCHEMA, STATE).where is not None


def test_of_two_lists_that_are_too_long_together_servers_test_the_first() -> None:
    lists = [F(column).isin(list(range(6_000))) for column in ("n", "small")]
    assert pushed(lists[0] & lists[1], SCHEMA, STATE).where == field("n").is_in(list(range(6_000)))
    assert pushed(lists[0] | lists[1], SCHEMA, STATE).where is None


def test_a_filter_with_a_text_that_is_none_is_left_to_the_scan() -> None:
    assert pushed(F("city") == pa.scalar(b"\xff").cast(pa.string(), safe=False), SCHEMA, STATE) == (None, None)


def maybe(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | of


ROWS = st.fixed_dictionaries(
    {
        "n": maybe(st.integers(0, 4)),
        "small": maybe(st.integers(0, 2)),
        "x": maybe(st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf])),
        "city": maybe(st.sampled_from(["", "a", "b", "ä"])),
    }
)
LEAVES = st.one_of(
    st.builds(lambda v: F("n") > v, st.integers(0, 4)),
    st.builds(lambda v: F("n") == v, st.integers(0, 4)),
    st.builds(lambda v: F("x") <= v, st.sampled_from([0.0, 1.5, math.inf, math.nan])),
    st.builds(lambda v: F("x") > v, st.sampled_from([0.0, 1.5, math.nan])),
    st.builds(lambda v: F("x") != v, st.sampled_from([0.0, 1.5, math.nan])),
    st.builds(lambda v: F("city") < v, st.sampled_from(["a", "b"])),
    st.builds(lambda v: F("city").isin(v), st.lists(st.sampled_from(["a", "ä"]), min_size=1)),
    st.builds(lambda v: F("x").isin(v), st.lists(st.sampled_from([0.0, -0.0, 1.5, math.nan]), min_size=1)),
    st.sampled_from([F("n").is_null(), F("x").is_valid(), F("n") < F("n")]),
)
FILTERS = st.recursive(
    LEAVES,
    lambda of: st.one_of(
        st.builds(lambda a, b: a & b, of, of),
        st.builds(lambda a, b: a | b, of, of),
        st.builds(lambda a: ~a, of),
        st.builds(pc.if_else, of, of, st.just(NULL) | of),
        st.builds(lambda n, a: pc.if_else(F(n).is_valid(), a, NULL), st.sampled_from(["n", "x", "city"]), of),
    ),
    max_leaves=6,
)


@given(FILTERS, st.lists(ROWS, max_size=8))
def test_servers_never_leave_out_what_the_filter_lets_through(of: pc.Expression, rows: list[dict[str, Any]]) -> None:
    where = pushed(of, SCHEMA, STATE).where
    whole = [{"k": "k", **dict.fromkeys(_TYPES), **row} for row in rows]
    wanted = pa.Table.from_pylist(
        [row | {"at_row": number} for number, row in enumerate(whole)], SCHEMA.append(pa.field("at_row", pa.int64()))
    ).filter(of)["at_row"]
    if where is None:
        return
    tested, key = EntryFilter(STATE, where), StateCodec(STATE).storage_key("k")
    stored = [encode_row(1, [row[name] for name in _TYPES]) for row in whole]
    sent = {number for number, row in enumerate(stored) if tested.passes(key, row)}
    assert set(wanted.to_pylist()) <= sent


def test_a_predicate_is_told_in_words() -> None:
    words = (field("n") > 3) & (field("city").is_in(["a"]) | field("x").is_not_null()) & ~(field("n") == 5)
    assert in_words(words) == "n > 3 and (city in ('a') or x is not null) and not (n == 5)"
