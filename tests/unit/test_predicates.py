"""How predicates are written, and what of them is refused, by whom and by which name."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

from keyhole import field
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.entry_filter import EntryFilter
from keyhole.encoding.row_codec import encode_row
from keyhole.errors import KeyholeError, MalformedRequest, StaleDescriptor, ValueMismatch
from keyhole.model.predicates import MOST_PARTS, MOST_VALUES, And, Predicate
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.rpc.convert_predicates import predicate_from_proto, predicate_to_proto
from keyhole.v1 import predicate_pb2 as pb

_FIELDS = {
    "max": "double",
    "count": "bigint",
    "price": "decimal(6,2)",
    "city": "string",
    "raw": "binary",
    "ok": "boolean",
    "day": "date",
    "at": "timestamp",
    "clock": "timestamp_ntz",
    "tags": "array<string>",
    "place": "struct<lat:double,name:string>",
}
_KEY = (KeyColumn("sensor", KeyType.STRING), KeyColumn("day", KeyType.DATE))


def described(version: int = 1) -> StateDescriptor:
    schema = ValueSchema(version, tuple(ValueField(name, of) for name, of in _FIELDS.items()))
    return StateDescriptor("weather", "sensors", "main", StateKind.VALUE, 4, _KEY, schema, topic_id="topic")


def kept(predicate: Predicate, **fields: Any) -> bool:
    of = described()
    key = StateCodec(of).storage_key(("s1", dt.date(2026, 11, 27)))
    return EntryFilter(of, predicate).passes(key, encode_row(1, [fields.get(name) for name in _FIELDS]))


def test_the_form_in_python_says_what_it_looks_like() -> None:
    hot = (field("max") > 30) & ~field("city").is_in(["Bern", "Basel"])
    assert kept(hot, max=31.0, city="Chur")
    assert not kept(hot, max=31.0, city="Bern")
    assert not kept(hot, max=31.0)
    assert not kept(hot, max=30.0, city="Chur")
    three = (field("max") > 1) & (field("max") < 9) & (field("count") != 3)
    assert isinstance(three, And)
    assert len(three.parts) == 3
    assert kept((field("count") == 1) | (field("count") == 2) | field("count").is_null(), count=2)
    assert kept(field("count").between(1, 2), count=2)
    assert not kept(field("count").between(1, 2), count=3)
    assert kept(field("place")["name"] == "a", place=[0.5, "a"])
    assert kept(field("place", "lat").is_null(), place=[None, "a"])
    assert kept(field("place", "lat").is_null())
    assert kept(field("tags").is_not_null(), tags=[])
    assert kept(field("sensor") >= "s1")
    assert kept(field("day", of="key") == dt.date(2026, 11, 27))
    assert kept(field("day", of="value").is_null())
    assert kept((field("sensor") == "s2") | (field("count") == 3), count=3)
    assert repr(field("place")["lat"]) == "field('place', 'lat')"


def test_nan_equals_itself_and_is_above_all_other_numbers() -> None:
    nan, infinity = float("nan"), float("inf")
    held: list[tuple[Predicate, float]] = [
        (field("max") > infinity, nan),
        (field("max") >= 1, nan),
        (field("max") == nan, nan),
        (field("max") >= nan, nan),
        (field("max") <= nan, nan),
        (field("max") < nan, infinity),
        (field("max") != nan, 1.0),
        (field("max").is_in([1, nan]), nan),
        (field("max") != 1, nan),
        (field("max") == 0, -0.0),
    ]
    for predicate, value in held:
        assert kept(predicate, max=value), predicate
        assert not kept(~predicate, max=value), predicate
        assert not kept(predicate), predicate
        assert not kept(~predicate), predicate
    assert not kept(field("max") > nan, max=nan)
    assert not kept(field("max") <= infinity, max=nan)
    assert not kept(field("max").is_in([1, 2]), max=nan)


def test_values_of_numpy_and_pandas_are_as_good() -> None:
    assert kept(field("count") == np.int64(3), count=3)
    assert kept(field("max") > np.float32(0.5), max=1.0)
    assert kept(field("ok") == np.bool_(True), ok=True)
    assert kept(field("city") == np.str_("a"), city="a")
    assert kept(field("at") == pd.Timestamp("2026-11-27T00:00:00Z"), at=1795737600 * 10**6)
    assert kept(field("raw") == bytearray(b"a"), raw=b"a")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (lambda: field("max") == None, "'max' is compared with null.*is_null"),  # noqa: E711
        (lambda: field("max").is_in([1, None]), "'max' is compared with null"),
        (lambda: field("city").is_in("Bern"), "'city': is_in takes a list"),
        (lambda: field("max") > field("count"), "'max' is compared with another field"),
        (lambda: field("max") > [1], "'max' is compared with a list"),
        (lambda: field("at") > pd.NaT, "'at' is compared with a NaT"),
        (lambda: field("at") > pd.Timestamp(1, unit="ns", tz="UTC"), "'at' is compared with a Timestamp"),
        (lambda: (field("max") > 1) & True, "a bool is no predicate"),
        (lambda: field("max", of="row"), "'max': of must be"),
    ],
)
def test_what_can_be_no_predicate_is_refused_as_it_is_written(written: Callable[[], Any], said: str) -> None:
    with pytest.raises(MalformedRequest, match=said):
        written()


@pytest.mark.parametrize(
    "written", [lambda a: a and a, lambda a: a or a, lambda a: not a, lambda _: 1 < field("x") < 3]
)
def test_words_and_chains_of_python_are_refused(written: Callable[[Predicate], Any]) -> None:
    with pytest.raises(TypeError, match="combine predicates by"):
        written(field("max") > 1)


@pytest.mark.parametrize(
    ("predicate", "said"),
    [
        (field("min") > 1, "no field 'min'; it has sensor, day, max, count"),
        (field("max") > "30", "'max' is of type double, and is compared with a str; give a float"),
        (field("max") > Decimal(1), "'max' is of type double, and is compared with a Decimal"),
        (field("count") > float("nan"), "'count' is of type bigint.*not NaN"),
        (field("count") == True, "'count' is of type bigint, and is compared with a bool"),  # noqa: E712
        (field("price") > 1.5, "'price' is of type decimal, and is compared with a float"),
        (field("price") > Decimal("NaN"), "'price' is of type decimal"),
        (field("ok") == 1, "'ok' is of type boolean"),
        (field("city") == b"a", "'city' is of type string, and is compared with a bytes"),
        (field("city") == "\ud800", "'city' is of type string"),
        (field("raw") == "a", "'raw' is of type binary"),
        (field("day") > dt.date(2026, 1, 1), "'day' is a column of the key.*and a field.*say which"),
        (field("day", of="value") > dt.datetime(2026, 1, 1), "'day' is of type date"),  # noqa: DTZ001
        (field("at") > dt.datetime(2026, 1, 1), "'at' is of type timestamp.*with a time zone"),  # noqa: DTZ001
        (field("clock") > dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "'clock' is of type timestamp_ntz.*without"),
        (field("tags") == "a", "'tags' is of type array.*only whether it is null"),
        (field("place") == "a", "'place' is of type struct.*its fields"),
        (field("place", "lon") > 1, "'place.lon'.*no 'lon' in a struct; it has lat, name"),
        (field("max", "x") > 1, "'max.x'.*no 'x' in a double, only in structs"),
        (field("sensor") > 1, "'sensor' is of type string, and is compared with a int"),
    ],
)
def test_what_does_not_fit_the_state_is_refused_by_the_fields_name(predicate: Predicate, said: str) -> None:
    with pytest.raises(ValueMismatch, match=said) as refused:
        EntryFilter(described(), ~predicate | ~predicate)
    assert refused.value.facts["field"] in refused.value.message


def test_one_that_is_too_large_is_refused_before_it_is_sent_and_where_it_comes() -> None:
    part = field("max") > 1
    deep, wide, listed = part, And((part,) * MOST_PARTS), field("count").is_in(range(MOST_VALUES + 1))
    for _ in range(40):
        deep = ~deep
    for predicate in (deep, wide, listed):
        with pytest.raises(MalformedRequest, match="may have 1,000 comparisons"):
            predicate_to_proto(predicate)
        with pytest.raises(MalformedRequest, match="may have 1,000 comparisons"):
            EntryFilter(described(), predicate)
    sent = pb.Predicate(comparison=predicate_to_proto(part).comparison)
    for _ in range(45):
        sent = pb.Predicate(negated=sent)
    with pytest.raises(MalformedRequest, match="40 deep"):
        predicate_from_proto(sent)
    within = part
    for _ in range(19):
        within = ~(within & part)
    assert predicate_from_proto(pb.Predicate.FromString(predicate_to_proto(within).SerializeToString())) == within


@pytest.mark.parametrize(
    "message",
    [
        pb.Predicate(),
        pb.Predicate(is_null=pb.FieldPath()),
        pb.Predicate(is_null=pb.FieldPath(names=["a"], place=9)),  # type: ignore[arg-type]
        pb.Predicate(comparison=pb.Comparison(field=pb.FieldPath(names=["a"]), value=pb.PredicateValue(integer=1))),
        pb.Predicate(comparison=pb.Comparison(field=pb.FieldPath(names=["a"]), operator=pb.COMPARISON_OPERATOR_LESS)),
        pb.Predicate(one_of=pb.OneOf(field=pb.FieldPath(names=["a"]), values=[pb.PredicateValue()])),
        *(
            pb.Predicate(one_of=pb.OneOf(field=pb.FieldPath(names=["a"]), values=[value]))
            for value in (
                pb.PredicateValue(decimal="NaN"),
                pb.PredicateValue(decimal="1e9"),
                pb.PredicateValue(decimal="1" * 101),
                pb.PredicateValue(decimal="--1"),
                pb.PredicateValue(date_days=1 << 30),
                pb.PredicateValue(timestamp_micros=1 << 62),
                pb.PredicateValue(timestamp_ntz_micros=-(1 << 62)),
            )
        ),
    ],
)
def test_a_message_that_is_no_predicate_is_refused(message: pb.Predicate) -> None:
    with pytest.raises(MalformedRequest):
        predicate_from_proto(message)


def test_a_time_that_has_no_year_in_utc_is_refused_by_that() -> None:
    before_all = dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=14)))
    with pytest.raises(MalformedRequest, match=r"field 'at' is compared with .*time of no year from 1 to 9999 in"):
        predicate_from_proto(predicate_to_proto(field("at") == before_all))


def test_values_that_have_no_place_in_a_message_are_refused_by_the_fields_name() -> None:
    for value in ("\ud800", Decimal("Infinity"), 10**200, Decimal("1e200")):
        with pytest.raises(MalformedRequest, match="field 'price'"):
            predicate_to_proto(field("price") == value)
    large = field("price") == 10**30
    assert kept(predicate_from_proto(predicate_to_proto(~large)), price="1.50")


def test_a_row_that_is_none_and_one_of_a_newer_schema_are_told_as_lookups_tell_them() -> None:
    of = described()
    asked = EntryFilter(of, field("count") == 1)

    def refused(row: bytes) -> type[KeyholeError]:
        with pytest.raises(KeyholeError) as error:
            asked.passes(b"\0\0a\0\0", row)
        return type(error.value)

    assert refused(encode_row(2, [None] * 11)) is StaleDescriptor
    assert refused(encode_row(1, ["a", "b"])) is ValueMismatch
    assert refused(b"") is ValueMismatch
    assert refused(msgspec.msgpack.encode("a")) is ValueMismatch
