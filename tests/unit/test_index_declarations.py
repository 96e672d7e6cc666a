"""What can be indexed, what is refused by its name, and what becomes of an index when the state changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pyspark.sql import types as spark

from keyhole.cli.arguments import parser_of_all
from keyhole.cli.feed import feed_options
from keyhole.encoding.indexed_fields import indexed_fields
from keyhole.errors import InvalidConfiguration, ValueMismatch
from keyhole.feed.feed_options import describe as fed
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.protocol.registration import settled
from keyhole.rpc.convert import descriptor_from_proto, descriptor_to_proto
from keyhole.spark import queryable
from keyhole.spark.declaration.declared import Declaration
from keyhole.spark.declaration.schema import describe

ORDERS = StateDescriptor(
    "shop",
    "orders",
    "orders",
    StateKind.VALUE,
    64,
    (KeyColumn("order", KeyType.STRING),),
    ValueSchema(1, (ValueField("customer", "string"), ValueField("n", "int"), ValueField("place", "struct<x:int>"))),
    topic_id="topic",
    index=("customer", "n"),
)


def orders(**changes: Any) -> StateDescriptor:
    return msgspec.structs.replace(ORDERS, **changes)


def ids(of: StateDescriptor) -> list[bytes]:
    return [field.id for field in indexed_fields(of)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index": ("costumer",)}, "'costumer', which is no field of it; name fields of the value: customer, n, place"),
        ({"index": ("order",)}, "'order', which is a column of the key"),
        ({"index": ("place",)}, "'place', which is of type struct, whose values have no order; make the field"),
        ({"index": ("n", "n")}, "'n' twice"),
        ({"key_groups": 32_769}, "32,769 key groups, and one with an index has at most 32,768"),
    ],
)
def test_what_can_not_be_indexed_is_refused_before_it_is_on_record(changes: Any, message: str) -> None:
    with pytest.raises(ValueMismatch, match=message):
        settled(None, orders(**changes))


def test_an_index_comes_and_goes_and_has_the_life_of_its_field() -> None:
    assert settled(orders(index=()), ORDERS).index == ("customer", "n")
    assert settled(ORDERS, orders(index=("n",))).index == ("n",)
    customer, n, _ = ORDERS.value.fields
    of_customer, of_n = ids(ORDERS)
    wider = settled(ORDERS, orders(value=ValueSchema(1, (ValueField("n", "bigint"), customer))))
    assert ids(wider) == [of_customer, of_n]
    with pytest.raises(ValueMismatch, match="'n', which is no field"):
        settled(ORDERS, orders(value=ValueSchema(1, (customer,))))
    # What is dropped and added again is another field, also for who has missed that.
    without = settled(ORDERS, orders(value=ValueSchema(1, (customer,)), index=("customer",)))
    again = settled(without, orders(value=ValueSchema(1, (customer, n))))
    assert ids(again)[0] == of_customer
    assert ids(again)[1] != of_n
    assert descriptor_from_proto(descriptor_to_proto(again)) == again


def test_a_job_names_fields_of_the_value() -> None:
    place = spark.StructType().add("x", spark.IntegerType())
    columns = spark.StructType().add("order", spark.StringType()).add("n", spark.IntegerType()).add("place", place)

    def described(*index: str) -> StateDescriptor:
        return describe(Declaration("orders", ("order",), 64, None, None, index=index), "shop", "q", columns)

    assert described("n").index == ("n",)
    with pytest.raises(ValueMismatch, match="'place', which is of type struct"):
        described("place")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (["n", "n"], r"index names a field twice \(n, n\)"),
        ("order", "index names order, which is part of the key"),
        (7, "index is given as 7; give the column's name as text"),
    ],
)
def test_a_wrong_argument_of_a_job_is_refused_where_it_is_given(index: Any, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        queryable.value("orders", key="order", index=index)


def test_a_state_that_is_fed_has_indexes() -> None:
    words = ["feed", "shop/orders", "--topic", "orders", "--key", "order", "--value", "customer", "--value", "n:int"]

    def declared(*more: str) -> StateDescriptor:
        return fed(feed_options(parser_of_all().parse_args([*words, *more])))

    assert declared().index == ()
    assert declared("--index", "customer", "--index", "n").index == ("customer", "n")
    with pytest.raises(ValueMismatch, match="index names 'amount', which is no field of it"):
        declared("--index", "amount")
