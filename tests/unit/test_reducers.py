"""What each reducer takes, what it makes of values, and how rows of a reducing state come together."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import pytest

from keyhole.encoding.reducers import REDUCERS, Place, problems
from keyhole.encoding.row_codec import encode_row
from keyhole.errors import ValueMismatch
from keyhole.model.epoch import START, Position
from keyhole.model.state import StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.stores.base import Advance, Batch
from keyhole.stores.memory import MemoryEngine
from services.state_server.write.merge import changes, merge_of
from tests.support.states import EPOCH, descriptor, key, names_in

BIGINT_MAX, BIGINT_MIN = (1 << 63) - 1, -(1 << 63)
FIRST, SECOND, THIRD = sorted(map(key, names_in(0)))


def reducing(*fields: tuple[str, str]) -> StateDescriptor:
    """app/counts with fields f1, f2, ... of (reducer, stored type)."""
    return descriptor(
        kind=StateKind.REDUCING,
        reducers=tuple(name for name, _ in fields),
        value=ValueSchema(1, tuple(ValueField(f"f{n}", kind) for n, (_, kind) in enumerate(fields, start=1))),
    )


def reduced(reducer: str, kind: str, one: Any, other: Any) -> Any:
    place = Place(ValueField("n", kind), 1)
    reduce = REDUCERS[reducer].reduce(place, place)
    there, back = reduce((1, one), (1, other)), reduce((1, other), (1, one))
    assert repr(there) == repr(back), "the order of the rows shows"
    return there


@pytest.mark.parametrize(
    ("reducer", "column", "stored"),
    [
        ("sum", "tinyint", "bigint"),
        ("sum", "int", "bigint"),
        ("sum", "bigint", "bigint"),
        ("sum", "float", "double"),
        ("sum", "decimal(10,2)", "decimal(20,2)"),
        ("sum", "decimal(38,0)", "decimal(38,0)"),
        ("sum", "string", None),
        ("sum", "boolean", None),
        ("sum", "date", None),
        ("sum", "array<int>", None),
        ("min", "int", "int"),
        ("max", "string", "string"),
        ("max", "decimal(10,2)", "decimal(10,2)"),
        ("min", "timestamp_ntz", "timestamp_ntz"),
        ("max", "map<string,int>", None),
        ("max", "struct<a:int>", None),
        ("count", "struct<a:int>", "bigint"),
        ("count", "int", "bigint"),
        ("any", "boolean", "boolean"),
        ("all", "int", None),
        ("first", "map<string,int>", "map<string,int>"),
        ("last", "float", "float"),
        ("max_by", "struct<a:int>", "struct<a:int>"),
    ],
)
def test_the_stored_type_is_the_one_that_sparks_aggregate_has(reducer: str, column: str, stored: str | None) -> None:
    assert REDUCERS[reducer].stored(column) == stored


@pytest.mark.parametrize(
    ("reducer", "kind", "one", "other", "expected"),
    [
        ("sum", "bigint", 1, 2, 3),
        ("sum", "bigint", BIGINT_MAX, -1, BIGINT_MAX - 1),
        ("sum", "double", 1.5, 2.0, 3.5),
        ("sum", "double", 1.5, math.nan, math.nan),
        ("sum", "double", math.inf, -math.inf, math.nan),
        ("sum", "decimal(20,2)", "1.50", "-0.25", "1.25"),
        ("sum", "decimal(20,2)", "1.50", "-1.50", "0.00"),
        ("sum", "decimal(38,0)", "1" + "0" * 37, "1", "1" + "0" * 36 + "1"),
        ("sum", "bigint", None, 2, 2),
        ("sum", "bigint", None, None, None),
        ("min", "int", 1, 2, 1),
        ("max", "int", None, -5, -5),
        ("min", "double", math.nan, math.inf, math.inf),
        ("max", "double", math.nan, math.inf, math.nan),
        ("min", "double", 0.0, -0.0, -0.0),
        ("max", "double", 0.0, -0.0, 0.0),
        ("max", "decimal(10,2)", "9.00", "10.00", "10.00"),
        ("min", "decimal(10,2)", "-9.00", "-10.00", "-10.00"),
        ("max", "string", "é", "z", "é"),
        ("max", "boolean", False, True, True),
        ("count", "bigint", 1, 0, 1),
        ("any", "boolean", False, True, True),
        ("any", "boolean", False, None, False),
        ("all", "boolean", False, True, False),
        ("all", "boolean", None, None, None),
        ("first", "string", "a", None, "a"),
        ("first", "string", "b", "a", "a"),
        ("last", "string", "b", "a", "b"),
    ],
)
def test_values_are_merged_as_spark_aggregates_them(
    reducer: str, kind: str, one: Any, other: Any, expected: Any
) -> None:
    assert repr(reduced(reducer, kind, one, other)) == repr(expected)


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("bigint", BIGINT_MAX, 1),
        ("bigint", BIGINT_MIN, -1),
        ("decimal(3,1)", "99.9", "0.1"),
        ("decimal(38,0)", "9" * 38, "1"),
        ("decimal(38,38)", "-0." + "9" * 38, "-0." + "0" * 37 + "1"),
    ],
)
def test_a_sum_that_outgrows_its_type_is_an_error_that_names_the_field_and_no_value(
    kind: str, one: Any, other: Any
) -> None:
    with pytest.raises(ValueMismatch, match="the sum in field n does not fit its type") as caught:
        reduced("sum", kind, one, other)
    assert str(one) not in str(caught.value)


def test_rows_are_merged_field_by_field() -> None:
    merge = merge_of(reducing(("sum", "bigint"), ("min", "string"), ("count", "bigint")))
    merged = merge.staged(encode_row(1, [1, None, 1]), encode_row(1, [2, "b", 0]))
    assert merged == encode_row(1, [3, "b", 1])


@pytest.mark.parametrize(
    ("row", "other", "expected"),
    [
        (["low", 1], ["high", 2], ["high", 2]),
        ([None, 2], ["low", 1], [None, 2]),
        (["one", 1], [None, None], ["one", 1]),
        (["b", 1], ["a", 1], ["b", 1]),
        ([None, None], [None, None], [None, None]),
    ],
)
def test_max_by_takes_the_value_of_the_row_with_the_highest_other_field(
    row: list[Any], other: list[Any], expected: list[Any]
) -> None:
    merge = merge_of(reducing(("max_by(f2)", "string"), ("max", "bigint")))
    there = merge.staged(encode_row(1, row), encode_row(1, other))
    assert there == merge.staged(encode_row(1, other), encode_row(1, row)) == encode_row(1, expected)


def test_min_by_takes_the_value_of_the_row_with_the_lowest_other_field() -> None:
    merge = merge_of(reducing(("min", "double"), ("min_by(f1)", "array<int>")))
    rows = encode_row(1, [math.nan, [1]]), encode_row(1, [1.5, [2, None]])
    assert merge.staged(*rows) == merge.staged(*reversed(rows)) == rows[1]


def test_first_stays_and_last_is_replaced_epoch_by_epoch() -> None:
    merge = merge_of(reducing(("first", "string"), ("last", "map<string,int>")))
    store = MemoryEngine().open("app", "counts", "topic")
    before = [(FIRST, encode_row(1, ["m", [["z", 9]]])), (SECOND, encode_row(1, [None, [["z", 9]]]))]
    store.apply(Batch(puts=sorted(before), advances={0: Advance(START, Position(1, 1, 1, 0))}))
    rows = {FIRST: encode_row(1, ["a", [["a", 1]]]), SECOND: encode_row(1, ["a", None])}
    written = changes(rows, store.snapshot(), 0, merge, EPOCH, replace=False)
    assert written == [(FIRST, encode_row(1, ["m", [["a", 1]]])), (SECOND, encode_row(1, ["a", [["z", 9]]]))]


@pytest.mark.parametrize(
    ("reducers", "message"),
    [
        ({"v": "total"}, r"'v' has the reducer 'total'; the reducers are sum, .*, last, min_by\(column\)"),
        ({"v": "max_by"}, r"'v' .* goes by another column: write max_by\(column\)"),
        ({"v": "max_by()"}, r"'v' .* goes by another column: write max_by\(column\)"),
        ({"v": "sum(at)"}, "'v' .* goes by no other column: write sum"),
        ({"v": "max_by(at)"}, "'v' goes by 'at', which must be among the reducers as 'max'"),
        ({"v": "max_by(at)", "at": "min"}, "'v' goes by 'at', which must be among the reducers as 'max'"),
        ({"v": "max_by(v)"}, "'v' goes by 'v'"),
        ({"v": None}, "'v' has the reducer None"),
    ],
)
def test_what_is_no_reducer_of_a_column_is_said(reducers: dict[str, object], message: str) -> None:
    (problem,) = problems(reducers)
    assert re.search(message, problem)


def test_reducers_may_go_by_any_column_name() -> None:
    assert not list(problems({"v": "max_by(the time (UTC))", "the time (UTC)": "max", "w": "first"}))


def test_an_epochs_rows_are_merged_with_the_stored_ones_and_others_are_left_alone() -> None:
    merge = merge_of(reducing(("sum", "bigint")))
    store = MemoryEngine().open("app", "counts", "topic")
    store.apply(
        Batch(
            puts=[(FIRST, encode_row(1, [10])), (SECOND, encode_row(1, [20]))],
            advances={0: Advance(START, Position(1, 1, 1, 0))},
        )
    )
    rows = {THIRD: encode_row(1, [3]), FIRST: encode_row(1, [1])}
    written = changes(rows, store.snapshot(), 0, merge, EPOCH, replace=False)
    assert written == [(FIRST, encode_row(1, [11])), (THIRD, encode_row(1, [3]))]


def test_a_deletion_clears_the_key_and_takes_the_epochs_other_rows_of_it_along() -> None:
    merge = merge_of(reducing(("sum", "bigint")))
    assert merge.staged(None, encode_row(1, [1])) is None
    assert merge.staged(encode_row(1, [1]), None) is None


@pytest.mark.parametrize(
    "row",
    [
        encode_row(2, [1]),
        encode_row(1, [1, 2]),
        encode_row(1, ["secret"]),
        encode_row(1, [1 << 63]),
        b"",
        b"\xc1",
        msgspec.msgpack.encode("secret"),
    ],
)
def test_a_row_that_is_not_of_the_states_schema_can_not_be_merged(row: bytes) -> None:
    merge = merge_of(reducing(("sum", "bigint")))
    with pytest.raises(ValueMismatch) as caught:
        merge.staged(row, encode_row(1, [1]))
    assert "secret" not in str(caught.value)
