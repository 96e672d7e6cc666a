"""What callers of the client give: keys, durations, targets."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.client.bounds import bounds_of, seconds_of
from keyhole.client.wire.lookups import keys_of
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.key_codec import KeyCodec
from keyhole.errors import KeyMismatch, MalformedRequest, NullKey
from keyhole.model.state import KeyColumn, KeyType
from keyhole.rpc.convert import key_from_proto, key_to_proto
from tests.support.key_strategies import COLUMNS, keys
from tests.support.readings import descriptor


class Sensor(enum.StrEnum):
    FIRST = "sensor-1"


class OldSensor(str, enum.Enum):  # noqa: UP042 - as they were written before Python 3.11
    FIRST = "sensor-1"


class Number(enum.IntEnum):
    SEVEN = 7


class Plain(enum.Enum):
    FIRST = "sensor-1"
    SEVEN = 7
    YES = True
    NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Day(date):
    pass


_BEFORE_ALL = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))
_NOON = datetime(2026, 11, 21, 12, 30, 0, 123456, tzinfo=UTC)

_ALIKE: list[tuple[KeyType, Any, Any]] = [
    (KeyType.STRING, np.str_("sensor-1"), "sensor-1"),
    (KeyType.STRING, Sensor.FIRST, "sensor-1"),
    (KeyType.STRING, OldSensor.FIRST, "sensor-1"),
    (KeyType.BINARY, bytearray(b"\0a"), b"\0a"),
    (KeyType.BINARY, np.bytes_(b"ab"), b"ab"),
    (KeyType.BOOLEAN, np.True_, True),
    (KeyType.SMALLINT, np.int64(7), 7),
    (KeyType.INT, np.uint8(7), 7),
    (KeyType.BIGINT, np.int64(-(1 << 63)), -(1 << 63)),
    (KeyType.BIGINT, Number.SEVEN, 7),
    (KeyType.DATE, Day(2026, 11, 21), date(2026, 11, 21)),
    (KeyType.TIMESTAMP, pd.Timestamp(_NOON), _NOON),
    (KeyType.TIMESTAMP, pd.Timestamp("2026-11-21 13:30:00.123456", tz="Europe/Zurich"), _NOON),
]


@pytest.mark.parametrize(("kind", "given", "plain"), _ALIKE)
def test_a_value_of_another_type_with_one_meaning_is_that_value(kind: KeyType, given: Any, plain: Any) -> None:
    columns = (KeyColumn("k", kind),)
    (checked,) = KeyCodec(columns).check(given)
    assert (type(checked), checked) == (type(plain), plain)
    one = StateCodec(descriptor(key=kind))
    assert one.storage_key(given) == one.storage_key(plain) == one.storage_key([given])
    assert key_to_proto(columns, given) == key_to_proto(columns, plain)
    assert KeyCodec(columns).encode_first([given]) == KeyCodec(columns).encode_first([plain])


@pytest.mark.parametrize(
    ("kind", "given", "hint"),
    [
        (KeyType.STRING, 1, "give a str"),
        (KeyType.STRING, b"sensor-1", "give a str"),
        (KeyType.STRING, Plain.FIRST, r"the Plain .* give a str \(of a member of an Enum its \.value\)$"),
        (KeyType.STRING, Plain.SEVEN, "give a str$"),
        (KeyType.BIGINT, Plain.SEVEN, r"give an int of 64 bits \(of a member of an Enum its \.value\)$"),
        (KeyType.BOOLEAN, Plain.YES, r"give a bool \(of a member of an Enum its \.value\)$"),
        (KeyType.TIMESTAMP, Plain.NOON, r"in microseconds \(of a member of an Enum its \.value\)$"),
        (KeyType.BIGINT, "1", "give an int of 64 bits"),
        (KeyType.BIGINT, 1.0, "give an int of 64 bits"),
        (KeyType.BIGINT, np.float64(1.0), "give an int of 64 bits"),
        (KeyType.BIGINT, np.timedelta64(5, "s"), "give an int of 64 bits"),
        (KeyType.BIGINT, np.True_, "give an int of 64 bits"),
        (KeyType.BIGINT, Decimal(1), "give an int of 64 bits"),
        (KeyType.SMALLINT, np.int64(1 << 15), "give an int of 16 bits"),
        (KeyType.BOOLEAN, 1, "give a bool"),
        (KeyType.DATE, pd.Timestamp("2026-11-21"), r"a datetime.date \(of a datetime its date\(\)\)"),
        (KeyType.DATE, "2026-11-21", "a datetime.date"),
        (KeyType.TIMESTAMP, pd.Timestamp("2026-11-21"), "Timestamp without a time zone.*give a datetime with"),
        (KeyType.TIMESTAMP, pd.Timestamp("2026-11-21T00:00:00.000000001Z"), "with nanoseconds.*in microseconds"),
        (KeyType.TIMESTAMP, _BEFORE_ALL, "datetime of no year from 1 to 9999 in UTC"),
        (KeyType.TIMESTAMP, pd.Timestamp(2**58, unit="us", tz="UTC"), "Timestamp of no year from 1 to 9999 in UTC"),
        (KeyType.STRING, "a\ud800", "str with half of a character"),
        (KeyType.TIMESTAMP, np.datetime64("2026-11-21"), "give a datetime with a time zone"),
        (KeyType.TIMESTAMP, date(2026, 11, 21), "give a datetime with a time zone"),
        (KeyType.TIMESTAMP, "2026-11-21T00:00:00Z", "give a datetime with a time zone"),
    ],
)
def test_what_has_no_one_meaning_is_refused_with_what_to_give(kind: KeyType, given: Any, hint: str) -> None:
    columns = (KeyColumn("k", kind),)
    for refused in (KeyCodec(columns).check, lambda key: key_to_proto(columns, key)):
        with pytest.raises(KeyMismatch, match=f"key column k is a {kind}; .*{hint}"):
            refused(given)


def test_pandas_null_among_times_is_null() -> None:
    with pytest.raises(NullKey):
        KeyCodec((KeyColumn("k", KeyType.TIMESTAMP),)).check(pd.NaT)


@given(COLUMNS.flatmap(lambda columns: st.tuples(st.just(columns), keys(columns))))
def test_a_list_is_a_key_as_a_tuple_is_and_its_message_says_the_same(given: Any) -> None:
    columns, values = given
    codec = KeyCodec(columns)
    assert codec.encode(list(values)) == codec.encode(values)
    assert key_from_proto(key_to_proto(columns, list(values))) == values


@pytest.mark.parametrize("keys", ["c1", b"c1", bytearray(b"c1"), np.str_("c1")])
def test_many_keys_are_not_the_characters_of_one(keys: Iterable[Any]) -> None:
    with pytest.raises(MalformedRequest, match="give a list of keys, also of one, or use get"):
        keys_of(keys)


def test_nor_the_names_of_a_tables_columns() -> None:
    frame = pd.DataFrame({"customer": ["c1", "c2"]})
    with pytest.raises(MalformedRequest, match="whose columns' names would each be a key; give a list of keys"):
        keys_of(frame)
    assert (
        keys_of(frame["customer"]) == keys_of(frame.customer.to_numpy()) == keys_of(frame.set_index("customer").index)
    )


def test_nor_the_names_of_one_key_s_columns() -> None:
    with pytest.raises(MalformedRequest, match="keys is a dict, whose names would each be a key; give a list of keys"):
        keys_of({"customer": "c1"})
    assert keys_of({"c1": 1, "c2": 2}.keys()) == ["c1", "c2"]


@pytest.mark.parametrize("given", [5, 5.0, np.int64(5), np.float32(5), timedelta(seconds=5)])
def test_a_duration_is_a_number_of_seconds_or_a_timedelta(given: Any) -> None:
    assert seconds_of("timeout", given) == 5.0
    assert bounds_of("always", given, 0).max_staleness_ms == 5000


@pytest.mark.parametrize("given", ["5", True, datetime(2026, 1, 1, tzinfo=UTC), math.nan, math.inf])
def test_any_other_duration_is_refused_by_name(given: Any) -> None:
    with pytest.raises(MalformedRequest, match=r"timeout is .*give a .*number of seconds"):
        seconds_of("timeout", given)
    with pytest.raises(MalformedRequest, match="max_staleness is"):
        bounds_of("always", given, 0)
