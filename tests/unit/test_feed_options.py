"""What a feeder is told comes to a descriptor, as a job's declaration does, or is refused by what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from keyhole.errors import InvalidConfiguration, ValueMismatch
from keyhole.feed.feed_options import (
    FeedOptions,
    RecordFormat,
    describe,
    key_columns,
    reduced_columns,
    source_columns,
    value_columns,
)
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema


def options(**changes: Any) -> FeedOptions:
    given: dict[str, Any] = {"key": key_columns(["customer"]), "value": value_columns(["amount:double", "note"])}
    return FeedOptions("shop", "orders", **{**given, **changes})


def reducing(*texts: str, **changes: Any) -> FeedOptions:
    value, reducers = reduced_columns(texts)
    return options(value=value, reducers=reducers, **changes)


def test_a_state_of_rows_has_the_columns_as_they_are() -> None:
    assert describe(options(order_by="amount", ttl_ms=5)) == StateDescriptor(
        application="shop",
        state="orders",
        query="orders",
        kind=StateKind.VALUE,
        key_groups=16,
        key=(KeyColumn("customer", KeyType.STRING),),
        value=ValueSchema(1, (ValueField("amount", "double"), ValueField("note", "string"))),
        order_by="amount",
        ttl_ms=5,
    )


def test_a_field_may_have_another_name_than_its_column() -> None:
    texts = ["orders=count:customer", "spent=sum:amount:decimal(9,2)", "new=max:at:timestamp", "who=max_by(new):name"]
    value, reducers = reduced_columns(texts)
    assert [(field.name, field.type) for field in value] == [
        ("orders", "string"),
        ("spent", "decimal(9,2)"),
        ("new", "timestamp"),
        ("who", "string"),
    ]
    assert reducers == ("count", "sum", "max", "max_by(new)")
    assert source_columns(texts) == ("customer", "amount", "at", "name")
    # A column may have a colon in its name, as it always could.
    assert reduced_columns(["who=max_by(a:b)"])[1] == ("max_by(a:b)",)
    assert source_columns(["amount:decimal(9,2)=sum", "price=max"]) == ()


def test_a_reducing_state_has_the_fields_that_its_reducers_make() -> None:
    made = describe(
        reducing("amount:decimal(9,2)=sum", "price=max", "seen=any", "note=count", "at:timestamp=max", "who=max_by(at)")
    )
    assert made.kind is StateKind.REDUCING
    assert made.reducers == ("sum", "max", "any", "count", "max", "max_by(at)")
    assert [(field.name, field.type, field.nullable) for field in made.value.fields] == [
        ("amount", "decimal(19,2)", True),
        ("price", "double", True),
        ("seen", "boolean", True),
        ("note", "bigint", False),
        ("at", "timestamp", True),
        ("who", "string", True),
    ]


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (options(map_key=key_columns(["day:date"])), StateKind.MAP),
        (options(max_length=3), StateKind.LIST),
        (reducing("amount=sum", map_key=key_columns(["day:date"])), StateKind.REDUCING),
    ],
)
def test_the_kind_follows_from_what_is_given(made: FeedOptions, kind: StateKind) -> None:
    assert describe(made).kind is kind


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (options(key=()), "no key column"),
        (options(value=()), "no value column"),
        (options(value=value_columns(["customer"])), "'customer' is named twice"),
        (options(value=value_columns([""])), "no column can be called ''"),
        (options(value=value_columns(["_keyhole_op"])), "no column can be called"),
        (options(key_groups=0), "key_groups is 0"),
        (options(ttl_ms=-1), "below 0"),
        (options(order_by="at"), "'at', which is no value column"),
        (options(order_by="note", max_length=1), "a list state has no order_by"),
        (options(value=value_columns(["at:struct<s:int>"]), order_by="at"), "'at' is of type struct.*have no highest"),
        (options(value=value_columns(["at:array<int>"]), order_by="at"), "'at' is of type array"),
        (options(max_length=1, map_key=key_columns(["m"])), "neither a map key nor reducers"),
        (reducing("amount=median"), "has the reducer 'median'"),
        (reducing("who=max_by(at)"), "must be among the reducers"),
        (options(reducers=("sum",)), "each value column needs a reducer"),
        (options(format=RecordFormat.DEBEZIUM, max_length=1), "a list can't follow the changes"),
        (options(format=RecordFormat.DEBEZIUM, order_by="note"), "leave order_by out"),
        (reducing("amount=max", format=RecordFormat.DEBEZIUM), "max can't follow the changes"),
        (FeedOptions("shop", "control", options().key, options().value), "no state may be called control"),
        (FeedOptions("a/b", "c", options().key, options().value), "the application's name"),
        (FeedOptions("shop", "", options().key, options().value), "the state's name"),
    ],
)
def test_what_can_t_be_is_refused_by_its_name(wrong: FeedOptions, why: str) -> None:
    with pytest.raises(InvalidConfiguration, match=why):
        describe(wrong)


def test_a_column_of_a_type_that_can_t_be_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="'price' is of type double, which can't be a key"):
        key_columns(["price:double"])
    with pytest.raises(InvalidConfiguration, match=r"names no reducer: write column=reducer, .* as spent=sum:amount"):
        reduced_columns(["amount"])
    for wrong in ("spent=sum:", "spent:double=sum:amount"):
        with pytest.raises(InvalidConfiguration, match="is not field=reducer:column or field=reducer:column:type"):
            reduced_columns([wrong])
    with pytest.raises(ValueMismatch, match="can't hold values of type money"):
        describe(options(value=value_columns(["amount:money"])))
    with pytest.raises(ValueMismatch, match="sum can't reduce column 'note' of type string"):
        describe(reducing("note:string=sum"))
