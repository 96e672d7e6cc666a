"""A row comes to the same whether it is written in Avro or in JSON; and whatever bytes come, none ends the process."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keyhole.errors import MalformedRequest, RequestError
from keyhole.feed.feed_options import FeedOptions, RecordFormat, describe, key_columns, value_columns
from keyhole.feed.mapping import RecordMapper
from keyhole.feed.registry.avro import avro_schema, read_whole
from keyhole.feed.registry.encodings import AvroEncoding
from keyhole.feed.rows import SourceRecord
from keyhole.testing.clock import ManualClock
from services.state_server.write.update_reader import UpdateReader
from tests.support.avro_records import encoded, framed, record_schema
from tests.support.damaged_records import damaged
from tests.support.schema_registry import StandInSource

STRUCT = record_schema("In", x=["null", "int"], y={"type": "enum", "name": "Y", "symbols": ["A", "B"]})
SCHEMA = record_schema(
    unread={"type": "array", "items": ["null", "string", "double"]},
    id="string",
    a=["null", "double"],
    b=["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}],
    c={"type": "array", "items": ["null", "string"]},
    d={"type": "map", "values": "long"},
    e=["null", STRUCT],
    f={"type": "long", "logicalType": "timestamp-millis"},
    g=["null", {"type": "int", "logicalType": "date"}],
    h="bytes",
    i=["null", "boolean"],
)
COLUMNS = [
    *("a:double", "b:decimal(9,2)", "c:array<string>", "d:map<string,bigint>", "e:struct<x:int,y:string>"),
    *("f:timestamp", "g:date", "h:binary", "i:boolean"),
]
STATE = describe(FeedOptions("app", "s", key_columns(["id"]), value_columns(COLUMNS), key_groups=8))
SOURCE = StandInSource()
SOURCE.add(7, SCHEMA)
OF_AVRO = RecordMapper(STATE, RecordFormat.AVRO, "s", AvroEncoding(SOURCE, ManualClock()))
OF_JSON = RecordMapper(STATE, RecordFormat.JSON, "s")
READER = UpdateReader(STATE)

LONG = st.integers(-(1 << 63), (1 << 63) - 1)
ROWS = st.fixed_dictionaries(
    {
        "unread": st.lists(st.none() | st.text(max_size=3) | st.floats(), max_size=3),
        "id": st.text(max_size=4),
        "a": st.none() | st.floats(),
        "b": st.none() | st.integers(-(10**9) + 1, 10**9 - 1).map(lambda cents: Decimal(cents).scaleb(-2)),
        "c": st.lists(st.none() | st.text(max_size=3), max_size=3),
        "d": st.dictionaries(st.text(max_size=3), LONG, max_size=3),
        "e": st.none()
        | st.fixed_dictionaries(
            {"x": st.none() | st.integers(-(1 << 31), (1 << 31) - 1), "y": st.sampled_from(["A", "B"])}
        ),
        "f": st.integers(-62_135_000_000_000, 253_402_000_000_000).map(
            lambda millis: dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=millis)
        ),
        "g": st.none() | st.dates(dt.date(1, 1, 1)),
        "h": st.binary(max_size=5),
        "i": st.none() | st.booleans(),
    }
)


def as_json(row: dict[str, Any]) -> bytes:
    """As a producer of JSON writes it, by docs/values.md."""

    def form(value: Any) -> Any:
        match value:
            case Decimal():
                return str(value)
            case bytes():
                return base64.b64encode(value).decode()
            case dt.datetime() | dt.date():
                return value.isoformat()
            case float() if value != value:
                return "NaN"
            case float() if value in (float("inf"), float("-inf")):
                return "Infinity" if value > 0 else "-Infinity"
            case dict():
                return {name: form(item) for name, item in value.items()}
        return value

    return json.dumps({name: form(value) for name, value in row.items() if name != "unread"}).encode()


@given(ROWS)
def test_a_row_of_avro_is_stored_as_that_of_json(row: dict[str, Any]) -> None:
    stored = []
    for mapper, value in ((OF_AVRO, framed(7, SCHEMA, row)), (OF_JSON, as_json(row))):
        (update,) = mapper.updates(SourceRecord(1, 2, None, value))
        stored.append((update.key_group, READER.read(update.record, 0)))
    assert repr(stored[0]) == repr(stored[1])


@given(row=ROWS, data=st.data())
def test_bytes_that_were_damaged_are_another_row_or_refused(row: dict[str, Any], data: st.DataObject) -> None:
    try:
        (update,) = OF_AVRO.updates(SourceRecord(1, 2, None, damaged(framed(7, SCHEMA, row), data)))
    except RequestError:
        return
    READER.read(update.record, 0)


NAMES = st.sampled_from("abc")
TYPES = st.recursive(
    st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string", "Node"]),
    lambda inner: (
        st.fixed_dictionaries({"type": st.just("array"), "items": inner})
        | st.fixed_dictionaries({"type": st.just("map"), "values": inner})
        | st.lists(inner.filter(lambda branch: not isinstance(branch, list)), min_size=1, max_size=3)
    ),
    max_leaves=4,
)


@given(st.dictionaries(NAMES, TYPES, max_size=3), st.binary(max_size=40) | st.binary(max_size=3).map(lambda b: b * 999))
def test_any_bytes_of_any_schema_are_a_value_no_larger_than_they_are_or_refused(
    fields: dict[str, Any], data: bytes
) -> None:
    schema = record_schema("Node", **fields)
    try:
        found = read_whole(avro_schema(json.dumps(schema)), data, 0, "it")
    except MalformedRequest:
        return
    # A record takes no byte for itself: its fields do.
    assert sizes(found) <= 2 * len(data) + 1


def test_an_item_that_is_a_record_counts_beside_its_field() -> None:
    schema = avro_schema(json.dumps(record_schema("Node", a={"type": "array", "items": "Node"})))
    assert sizes(read_whole(schema, b"\x04\0\0\0", 0, "it")) == 6


def sizes(value: Any) -> int:
    """How many values there are in it."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(sizes, inner))


@given(ROWS)
def test_what_another_library_writes_is_read_whole(row: dict[str, Any]) -> None:
    written = encoded(SCHEMA, row)
    found = read_whole(avro_schema(json.dumps(SCHEMA)), written, 0, "it")
    assert found.keys() == row.keys()
