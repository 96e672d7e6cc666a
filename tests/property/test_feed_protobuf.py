"""A row comes to the same in Protobuf as in JSON; and whatever bytes come, none ends the process."""

from __future__ import annotations

import base64
import functools
import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keyhole.errors import MalformedRequest, RequestError
from keyhole.feed.feed_options import FeedOptions, RecordFormat, describe, key_columns, value_columns
from keyhole.feed.mapping import RecordMapper
from keyhole.feed.registry.allowance import Allowance
from keyhole.feed.registry.encodings import ProtobufEncoding
from keyhole.feed.registry.protobuf import ProtobufSchema
from keyhole.feed.registry.schemas import RegisteredSchema
from keyhole.feed.rows import SourceRecord
from keyhole.testing.clock import ManualClock
from services.state_server.write.update_reader import UpdateReader
from tests.support.damaged_records import damaged
from tests.support.protobuf_records import Writer, framed, place
from tests.support.schema_registry import StandInSource

TEXT = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Row {
  repeated double unread = 1;
  string id = 2;
  optional double a = 3;
  repeated string c = 4;
  map<string, int64> d = 5;
  In e = 6;
  google.protobuf.Timestamp f = 7;
  bytes h = 8;
  google.protobuf.BoolValue i = 9;
  repeated sint32 j = 10;
  float k = 11;
  Row self = 12;
  message In { optional int32 x = 1; Y y = 2; }
  enum Y { A = 0; B = 1; }
}
"""
COLUMNS = [
    *("a:double", "c:array<string>", "d:map<string,bigint>", "e:struct<x:int,y:string>", "f:timestamp"),
    *("h:binary", "i:boolean", "j:array<int>", "k:float"),
]
STATE = describe(FeedOptions("app", "s", key_columns(["id"]), value_columns(COLUMNS), key_groups=8))
SOURCE = StandInSource()
SOURCE.schemas[7] = RegisteredSchema("PROTOBUF", TEXT)
OF_PROTOBUF = RecordMapper(STATE, RecordFormat.PROTOBUF, "s", ProtobufEncoding(SOURCE, ManualClock()))
OF_JSON = RecordMapper(STATE, RecordFormat.JSON, "s")
READER = UpdateReader(STATE)

INT, LONG = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
ROWS = st.fixed_dictionaries(
    {
        "unread": st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3),
        "id": TEXTS,
        "a": st.none() | st.floats(),
        "c": st.lists(TEXTS, max_size=3),
        "d": st.dictionaries(TEXTS, LONG, max_size=3).map(lambda found: dict(sorted(found.items()))),
        "e": st.none() | st.fixed_dictionaries({"x": st.none() | INT, "y": st.sampled_from(["A", "B"])}),
        "f": st.none() | st.datetimes().map(lambda moment: moment.isoformat() + "Z"),
        "h": st.binary(max_size=5),
        "i": st.none() | st.booleans(),
        "j": st.lists(INT, max_size=4),
        "k": st.floats(width=32),
    }
)


# Each asks protoc, which takes a tenth of a second: not while tests are collected.
writer = functools.cache(lambda: Writer(TEXT))
schema = functools.cache(lambda: ProtobufSchema(TEXT))


def in_json(row: dict[str, Any]) -> dict[str, Any]:
    """As JSON has it, Protobuf's and that of docs/values.md alike."""

    def form(value: Any) -> Any:
        match value:
            case bytes():
                return base64.b64encode(value).decode()
            case float() if not math.isfinite(value):
                return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            case dict():
                return {name: form(item) for name, item in value.items()}
        return value

    return {name: form(value) for name, value in row.items()}


def nested(inner: bytes) -> bytes:
    return b"\x62" + bytes([len(inner) & 0x7F]) + inner


def message(row: dict[str, Any]) -> bytes:
    return writer().message("Row", {name: value for name, value in in_json(row).items() if value is not None})


@given(ROWS)
def test_a_row_of_protobuf_is_stored_as_that_of_json(row: dict[str, Any]) -> None:
    plain = {name: value for name, value in in_json(row).items() if name != "unread"}
    stored = []
    for mapper, value in ((OF_PROTOBUF, framed(7, message(row))), (OF_JSON, json.dumps(plain).encode())):
        (update,) = mapper.updates(SourceRecord(1, 2, None, value))
        stored.append((update.key_group, READER.read(update.record, 0)))
    assert repr(stored[0]) == repr(stored[1])


@given(row=ROWS, data=st.data())
def test_bytes_that_were_damaged_are_another_row_or_refused(row: dict[str, Any], data: st.DataObject) -> None:
    try:
        (update,) = OF_PROTOBUF.updates(SourceRecord(1, 2, None, damaged(framed(7, message(row)), data)))
    except RequestError:
        return
    READER.read(update.record, 0)


@given(st.recursive(st.binary(max_size=30), lambda inner: inner.map(nested), max_leaves=4) | ROWS.map(message))
def test_what_is_read_is_no_larger_than_was_counted_before(data: bytes) -> None:
    """Code of ours walks through the bytes, whatever they are. What Google's library takes, it takes, too."""
    counted = Counted()
    try:
        found = schema().whole(place() + data, 0, "it")
    except MalformedRequest:
        return
    of = schema()._types[0,]
    of.layouts.walk(place() + data, 1, counted)
    assert values(found) * 8 <= counted.size <= of.layouts.most(len(data))


class Counted(Allowance):
    """Counts, and refuses nothing."""

    def __init__(self) -> None:
        super().__init__("it")
        self.size = 0

    def take(self, size: int) -> None:
        self.size += size


def values(value: Any) -> int:
    """How many there are in it."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(values, inner))
