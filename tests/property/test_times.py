"""Dates and times from the first to the last of the years 1 to 9999, at any depth, whatever the session's time zone.

Spark sends timestamps with the session's zone, in which the edges of these years have no date.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keyhole.encoding.arrow_times import as_numbers, in_utc
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.columnar import STORAGE_KEY, VALUE, encode
from keyhole.encoding.row import FrozenMap, Row
from keyhole.encoding.value_types import MICROS, days_of, micros_of
from keyhole.errors import KeyMismatch, ValueMismatch
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.spark.declaration.user_rows import rows_of

ZONES = ["UTC", "America/New_York", "Asia/Tokyo", "Pacific/Kiritimati", "Etc/GMT+12", "-18:00", "+18:00"]
FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
TIMES = st.datetimes(timezones=st.just(UTC)) | st.sampled_from([FIRST, LAST])
DATES = st.dates() | st.sampled_from([date.min, date.max])

# Spark's name, Arrow's type but for the zone, and how a value is drawn.
_LEAVES: list[tuple[str, pa.DataType, st.SearchStrategy[Any]]] = [
    ("timestamp", pa.timestamp("us", "UTC"), TIMES),
    ("date", pa.date32(), DATES),
    ("timestamp_ntz", pa.timestamp("us"), TIMES.map(lambda moment: moment.replace(tzinfo=None))),
    ("string", pa.string(), st.text(max_size=3)),
]


def _deeper(inner: tuple[str, pa.DataType, st.SearchStrategy[Any]], how: int) -> tuple[str, pa.DataType, Any]:
    name, kind, values = inner
    nullable = st.none() | values
    if how == 0:
        return f"array<{name}>", pa.list_(pa.field("element", kind)), st.lists(nullable, max_size=2)
    if how == 1:
        struct = pa.struct([("a", kind), ("b", pa.date32())])
        return f"struct<a:{name},b:date>", struct, st.fixed_dictionaries({"a": nullable, "b": st.none() | DATES})
    pairs = st.lists(st.tuples(TIMES, nullable), max_size=2, unique_by=lambda pair: pair[0])
    return f"map<timestamp,{name}>", pa.map_(pa.timestamp("us", "UTC"), kind), pairs


KINDS = st.tuples(st.sampled_from(_LEAVES), st.lists(st.integers(0, 2), max_size=3)).map(
    lambda drawn: _nested(drawn[0], drawn[1])
)


def _nested(leaf: Any, depth: list[int]) -> Any:
    for how in depth:
        leaf = _deeper(leaf, how)
    return leaf


def _in_zone(kind: pa.DataType, zone: str) -> pa.DataType:
    """As Spark sends it in a session of the zone."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp("us", zone)
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _in_zone(kind.value_type, zone)))
    if pa.types.is_map(kind):
        return pa.map_(_in_zone(kind.key_type, zone), _in_zone(kind.item_type, zone))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _in_zone(field.type, zone)) for field in kind])
    return kind


def _state(value: str) -> StateDescriptor:
    columns = (KeyColumn("k", KeyType.TIMESTAMP),)
    return StateDescriptor(
        "app", "times", "main", StateKind.VALUE, 16, columns, ValueSchema(1, (ValueField("v", value),))
    )


def _plain(value: Any) -> Any:
    """What a reader gets, as it was given."""
    match value:
        case Row():
            return {name: _plain(value[name]) for name in value}
        case FrozenMap():
            return [(key, _plain(item)) for key, item in value.items()]
        case tuple():
            return [_plain(item) for item in value]
        case _:
            return value


@given(
    KINDS.flatmap(lambda kind: st.tuples(st.just(kind), st.lists(st.none() | kind[2], min_size=1, max_size=4))),
    TIMES,
    st.sampled_from(ZONES),
)
@example((_deeper(_LEAVES[0], 0), [[FIRST]]), FIRST, "America/New_York")
@example((_deeper(_LEAVES[0], 1), [{"a": LAST, "b": date.max}]), LAST, "Asia/Tokyo")
@example((_deeper(_LEAVES[0], 2), [[(FIRST, LAST)]]), FIRST, "-18:00")
def test_every_time_of_these_years_is_stored_and_read_as_it_is_in_any_session(drawn: Any, key: Any, zone: str) -> None:
    (name, kind, _), values = drawn
    column = pa.array(values, kind).cast(_in_zone(kind, zone))
    keys = pa.array([key] * len(values), pa.timestamp("us", "UTC")).cast(pa.timestamp("us", zone))
    batch = pa.record_batch({"k": keys, "v": column})
    codec = StateCodec(_state(name))
    encoded = encode(batch, codec.descriptor)
    assert encoded.column(STORAGE_KEY).to_pylist() == [codec.storage_key(key)] * len(values)
    assert [_plain(codec.decode_row(row).v) for row in encoded.column(VALUE).to_pylist()] == values
    assert [codec.key(of) for of in encoded.column(STORAGE_KEY).to_pylist()] == [(key,)] * len(values)
    assert in_utc(column).to_pylist() == values
    # As aggregators, operators and codecs get them.
    assert [(row.k, row.v) for row in rows_of(batch, ["k", "v"])] == [(key, value) for value in values]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("micros", [micros_of(FIRST) - 1, micros_of(LAST) + 1])
@pytest.mark.parametrize("depth", [[], [0], [1], [2], [0, 1, 2]])
def test_a_time_outside_of_these_years_is_refused_by_its_columns_name(zone: str, micros: int, depth: list[int]) -> None:
    name, kind, _ = _nested(_LEAVES[0], depth)
    number: Any = micros
    for how in depth:
        number = [number] if how == 0 else {"a": number, "b": None} if how == 1 else [(0, number)]
    numbers = as_numbers(pa.array([], kind)).type
    column = pa.array([number], numbers).cast(_in_zone(kind, zone))
    moment = pa.array([0], pa.int64()).cast(pa.timestamp("us", zone))
    with pytest.raises(ValueMismatch, match="value column v has a date or timestamp outside the years 1 to 9999"):
        encode(pa.record_batch({"k": moment, "v": column}), _state(name))
    with pytest.raises(ValueMismatch, match="column v has a date or timestamp outside the years 1 to 9999"):
        list(rows_of(pa.record_batch({"v": column}), ["v"]))
    if not depth:
        with pytest.raises(KeyMismatch, match="key column k has a date or timestamp outside the years 1 to 9999"):
            encode(pa.record_batch({"k": column, "v": moment}), _state("timestamp"))


@given(TIMES, DATES)
def test_times_are_whole_microseconds_and_dates_whole_days(moment: datetime, day: date) -> None:
    assert as_numbers(pa.array([moment], pa.timestamp("us", "UTC"))).to_pylist() == [micros_of(moment)]
    assert as_numbers(pa.array([day], pa.date32())).to_pylist() == [days_of(day)]
    assert micros_of(moment) in MICROS
