"""What `keyhole sql --explain` says of indexes."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from keyhole.cli.sql_command import _explained
from keyhole.client import Client
from keyhole.client.sql_result import SqlResult
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.sql.entry_dataset import QueryReading
from keyhole.sql.live_states import LiveDataset

ORDERS = StateDescriptor(
    "shop",
    "orders",
    "orders",
    StateKind.VALUE,
    4,
    (KeyColumn("order", KeyType.STRING),),
    ValueSchema(1, (ValueField("customer", "string"), ValueField("total", "double"))),
    topic_id="topic",
    index=("customer", "total"),
)


@pytest.mark.parametrize(
    ("filter_", "indexes"),
    [
        (pc.field("customer") == "c7", ["customer"]),
        ((pc.field("total") > 5.0) & (pc.field("customer") == "c7"), ["customer", "total"]),
        (pc.field("order") == "o1", []),
        (None, []),
    ],
)
def test_the_indexes_that_servers_could_use_are_named(
    filter_: pc.Expression | None, indexes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    reading = QueryReading(60.0)
    nobody = cast("Client", None)  # nothing is read
    LiveDataset(nobody, ORDERS, 7, reading).scanner(["order"], filter_)
    LiveDataset(nobody, msgspec.structs.replace(ORDERS, index=()), 7, reading).scanner(["order"], filter_)
    result = SqlResult(pa.table({}), reading.scans, "plan")
    _explained(result, as_json=True, saved=False)
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [of["indexes"] for of in printed["scans"]] == [indexes, []]
    _explained(result, as_json=False, saved=False)
    line = f"  by an index   of {' or '.join(indexes)}, where that pays"
    assert capsys.readouterr().out.count(line) == bool(indexes)
