"""Comparisons as they are typed on a command line, or in a query of HTTP."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import msgspec
import pytest

from keyhole import KeyholeError, Predicate, field
from keyhole.encoding.aggregate_text import parsed_aggregates
from keyhole.encoding.predicate_text import parsed_where
from keyhole.errors import ValueMismatch
from keyhole.model.selection import named_fields
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from tests.support.hostile_names import NAMES, OF_FIELDS
from tests.support.of_all import of_all

FIELDS = {
    "max": "double",
    "max(t)": "double",
    "count": "bigint",
    "price": "decimal(6,2)",
    "city": "string",
    "raw": "binary",
    "ok": "boolean",
    "day": "date",
    "at": "timestamp",
    "clock": "timestamp_ntz",
    "place": "struct<lat:double,inner:struct<name:string>>",
    "is null": "int",
}
STATE = StateDescriptor(
    "app",
    "state",
    "main",
    StateKind.VALUE,
    4,
    (KeyColumn("sensor", KeyType.STRING), KeyColumn("day", KeyType.DATE)),
    ValueSchema(1, tuple(ValueField(name, of) for name, of in FIELDS.items())),
)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("max > 30", field("max") > 30.0),
        ("max>30", field("max") > 30.0),
        (" max<=-1e3 ", field("max") <= -1000.0),
        ("max > -Infinity", field("max") > float("-inf")),
        ("max(t) != 1", field("max(t)") != 1.0),
        ("count = 3", field("count") == 3),
        ("count >= 2.5", field("count") >= Decimal("2.5")),
        ("price == 1.50", field("price") == Decimal("1.50")),
        ("city == New York", field("city") == "New York"),
        ("city = = x", field("city") == "= x"),
        ("city ==", field("city") == ""),
        ("city in Bern, New York", field("city").is_in(["Bern", "New York"])),
        ('city in ["a,b", "c"]', field("city").is_in(["a,b", "c"])),
        ("count in [1, 2]", field("count").is_in([1, 2])),
        ("count in [9007199254740993]", field("count").is_in([2**53 + 1])),
        ("city is null", field("city").is_null()),
        ("city is not null", field("city").is_not_null()),
        ("is null is null", field("is null").is_null()),
        ("is null > 1", field("is null") > 1),
        ("raw == 00ff", field("raw") == b"\0\xff"),
        ("ok == true", field("ok") == True),  # noqa: E712
        ("sensor < b", field("sensor") < "b"),
        ("key:day > 2026-11-21", field("day", of="key") > dt.date(2026, 11, 21)),
        ("value:day > 2026-11-21", field("day", of="value") > dt.date(2026, 11, 21)),
        ("at > 2026-11-21T10:00:00", field("at") > dt.datetime(2026, 11, 21, 10, tzinfo=dt.UTC)),
        ("clock > 2026-11-21T10:00:00", field("clock") > dt.datetime(2026, 11, 21, 10)),  # noqa: DTZ001
        ("place.lat > 1", field("place", "lat") > 1.0),
        ("place.inner.name == x", field("place", "inner", "name") == "x"),
        ("place.inner is null", field("place", "inner").is_null()),
    ],
)
def test_a_comparison_means_what_it_does_in_python(text: str, meant: Predicate) -> None:
    assert parsed_where(STATE, [text]) == meant


NAMED = [*NAMES, "key:day", "value:a", " max", "is null", "1,x", "a.b.c"]


@of_all(NAMED)
def test_a_field_of_any_name_is_meant_by_it_beside_all_others(name: str) -> None:
    """Those that begin with a blank were taken for another one, which has no name."""
    of = dict.fromkeys(NAMED, "bigint") | {"place": f"struct<{','.join(f'{inner}:int' for inner in OF_FIELDS)}>"}
    state = msgspec.structs.replace(
        STATE,
        key=(KeyColumn("the key", KeyType.INT),),
        value=ValueSchema(1, tuple(ValueField(*field) for field in of.items())),
    )
    assert parsed_where(state, [f"{name}>1"]) == (field(name) > 1)
    # Of the one that has no name another one is left, which is a blank.
    assert parsed_where(state, [f"{name} > 1"]) == (field(name or " ") > 1)
    assert parsed_where(state, [f"value:{name}<=1"]) == (field(name, of="value") <= 1)
    assert parsed_where(state, [f"{name} is not null"]) == field(name).is_not_null()
    if name in OF_FIELDS:
        assert parsed_where(state, [f"place.{name} == 3"]) == (field("place", name) == 3)
    asked = parsed_aggregates(state, [f"sum({name})", f"top(3,{name})"])
    assert [one.path for one in asked.values()] == [field(name).path] * 2
    assert named_fields(json.dumps([name, "city"])) == [name, "city"]


@pytest.mark.parametrize("text", ["sum(nope)", "top(3,nope)", "max()"])
def test_an_aggregate_of_no_field_says_which_there_are_and_nothing_of_comparisons(text: str) -> None:
    with pytest.raises(ValueMismatch, match="what is computed names no field of state app/state, which has") as caught:
        parsed_aggregates(STATE, [text])
    assert "comparison" not in caught.value.message
    assert "FIELD OP VALUE" not in caught.value.message


def test_of_several_all_must_hold_and_none_is_no_predicate() -> None:
    assert parsed_where(STATE, ["max > 1", "count < 2"]) == (field("max") > 1.0) & (field("count") < 2)
    assert parsed_where(STATE, []) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "begins with no field of state app/state, which has sensor, day, max"),
        ("maximum > 3", "begins with no field"),
        ("max", "'max' is no comparison: write FIELD OP VALUE"),
        ("max ~ 3", "'max' is no comparison"),
        ("max > warm", "'max' is of type double: give a number"),
        ("count > 1e", "'count' is of type bigint: give a number"),
        ("count > NaN", "'count' is of type bigint: give a number"),
        ("count > 1_000", "'count' is of type bigint: give a number"),
        ("count > 042", "'count' is of type bigint: give a number"),
        ("count > \u0664\u0662", "'count' is of type bigint: give a number"),
        ("count in 1_0,2", "'count' is of type bigint: give a number"),
        ("price > 1_0.5", "'price' is of type decimal: give a number"),
        ("max > 1_000", "'max' is of type double: give a number"),
        ("max > \u0664\u0662", "'max' is of type double: give a number"),
        ("max > inf", "'max' is of type double: give a number"),
        ("ok = yes", "'ok' is of type boolean: give true or false"),
        ("raw = 0", "'raw' is of type binary: give hexadecimal"),
        ("day > 2026-11-21", "'day' is a column of the key"),
        ("at > noon", "'at' is of type timestamp: give a time"),
        ("clock > 2026-11-21T10:00:00Z", "'clock' is of type timestamp_ntz: give a time without"),
        ("place.lon > 1", "behind the point of field 'place'.*it has lat, inner"),
        ("max.x > 1", "behind the point of field 'max'.*no struct"),
        ("place = 1", "'place' is of type struct"),
        ("city in [1", "JSON array and is none"),
        ('city in ["Bern", null]', "nothing equals null"),
    ],
)
def test_what_is_none_is_refused_and_says_how_one_is_typed(text: str, said: str) -> None:
    with pytest.raises(KeyholeError, match=said) as refused:
        parsed_where(STATE, [text])
    for value in ("warm", "1e", "yes", "noon"):
        assert value not in refused.value.message.split("give")[0]
