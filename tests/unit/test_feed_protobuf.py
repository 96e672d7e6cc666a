"""What records of Protobuf become, by the schemas of a registry: the rows that JSON would have, or a refusal."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from keyhole.errors import MalformedRequest, ValueMismatch
from keyhole.feed.feed_options import FeedOptions, RecordFormat, describe, key_columns, value_columns
from keyhole.feed.mapping import RecordMapper
from keyhole.feed.registry.encodings import ProtobufEncoding
from keyhole.feed.registry.protobuf import ProtobufSchema
from keyhole.feed.registry.schemas import RegisteredSchema
from keyhole.feed.rows import SourceRecord
from keyhole.testing.clock import ManualClock
from tests.support.protobuf_records import Writer, framed, number, place
from tests.support.schema_registry import StandInSource

SECRET = "s3cret"
TEXT = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "parts/address.proto";
message Order {
  string customer = 1;
  optional int64 amount = 2;
  google.protobuf.Timestamp at = 3;
  map<string, int32> counts = 4;
  map<int32, Line> lines_of = 5;
  message Line { string what = 1; Kind kind = 2; message Deep { int32 x = 1; } }
  repeated Line lines = 6;
  enum Kind { SMALL = 0; LARGE = 1; }
  oneof paid { string card = 7; int32 cash = 8; }
  bytes raw = 9;
  double price = 10;
  google.protobuf.Int64Value wrapped = 11;
  parts.Address address = 12;
  Order inner = 13;
  uint64 big = 14;
  bool open = 15;
  google.protobuf.Duration took = 16;
  repeated sint32 small = 17;
  google.protobuf.BytesValue wrapped_raw = 18;
  repeated google.protobuf.Timestamp all = 19;
}
message Other { string customer = 1; }
"""
ADDRESS = ("parts/address.proto", 'syntax = "proto3"; package parts; message Address { string city = 1; }')
WRITER = Writer(TEXT, dict([ADDRESS]))


@pytest.fixture(scope="module")
def schema() -> ProtobufSchema:
    return ProtobufSchema(TEXT, [ADDRESS])


def written(row: dict[str, Any]) -> bytes:
    return place() + WRITER.message("shop.Order", row)


def read(text: str, name: str, row: dict[str, Any]) -> Any:
    """A row as the other library writes it by a schema, read by us."""
    return ProtobufSchema(text).whole(place() + Writer(text).message(name, row), 0, "it")


def test_fields_have_the_forms_of_json(schema: ProtobufSchema) -> None:
    row = {
        "customer": "c1",
        "amount": -(1 << 63),
        "at": "2026-11-21T10:00:00.123456789Z",
        "counts": {"a": 1},
        "lines_of": {"7": {"what": "x"}},
        "lines": [{"what": "w", "kind": "LARGE"}, {}],
        "cash": 0,
        "raw": base64.b64encode(b"\xff").decode(),
        "price": "NaN",
        "wrapped": 9,
        "address": {"city": "here"},
        "big": (1 << 64) - 1,
        "took": "1.000002s",
        "small": [-1, 2],
        "wrapped_raw": base64.b64encode(b"\xff").decode(),
        "all": ["1970-01-01T00:00:01Z", "1969-12-31T23:59:59Z"],
    }
    assert schema.whole(written(row), 0, "it") == {
        **row,
        "at": 1795255200123456,
        "lines_of": [[7, {"what": "x", "kind": "SMALL"}]],
        "lines": [{"what": "w", "kind": "LARGE"}, {"what": "", "kind": "SMALL"}],
        "card": None,
        "inner": None,
        "open": False,
        "took": 1000002,
        "all": [1000000, -1000000],
    }


def test_what_is_not_told_is_null_where_it_could_be_told_and_the_default_else(schema: ProtobufSchema) -> None:
    found = schema.whole(written({}), 0, "it")
    set_fields = {name: value for name, value in found.items() if value is not None}
    assert set_fields == {
        "customer": "",
        "raw": "",
        "price": 0.0,
        "big": 0,
        "open": False,
        "counts": {},
        "lines_of": [],
        "lines": [],
        "small": [],
        "all": [],
    }


PROTO2 = """
syntax = "proto2";
message Old {
  required string id = 1;
  optional int32 n = 2;
  optional int32 five = 3 [default = 5];
  optional Kind kind = 4 [default = B];
  optional bytes raw = 5 [default = "a"];
  optional group Part = 6 { optional int32 x = 1; }
  enum Kind { A = 1; B = 2; }
  extensions 100 to 199;
}
extend Old { optional int32 more = 100; }
"""


def test_defaults_of_proto2_groups_and_extensions() -> None:
    defaults = {"id": "a", "n": None, "five": 5, "kind": "B", "raw": "YQ==", "part": None}
    assert read(PROTO2, "Old", {"id": "a"}) == defaults
    row = {"id": "a", "n": 1, "five": 0, "kind": "A", "raw": "", "part": {"x": 1}, "[more]": 3}
    assert read(PROTO2, "Old", row) == {name: value for name, value in row.items() if name != "[more]"}
    with pytest.raises(MalformedRequest, match="lacks a field that its Protobuf schema requires"):
        read(PROTO2, "Old", {"n": 1})


EDITION = 'edition = "2023"; message New { string a = 1; int32 b = 2 [features.field_presence = IMPLICIT]; }'


def test_schemas_of_an_edition_are_read() -> None:
    assert read(EDITION, "New", {}) == {"a": None, "b": 0}


KAFKA_CONNECT = """
syntax = "proto3";
import "confluent/meta.proto";
import "confluent/types/decimal.proto";
import "google/type/date.proto";
import "google/type/timeofday.proto";
message Row {
  confluent.type.Decimal price = 1 [(confluent.field_meta) = { params: [ { key: "scale", value: "2" } ] }];
  google.type.Date day = 2;
  google.type.TimeOfDay time = 3;
}
"""


def test_types_of_kafka_connect_are_known_without_a_reference() -> None:
    price, day, time = b"\x0a\x02\xff\x6a\x18\x02", b"\x08\xea\x0f\x10\x0b\x18\x15", b"\x08\x01\x20\xe8\x07"
    row = b"".join(bytes([tag, len(data)]) + data for tag, data in ((0x0A, price), (0x12, day), (0x1A, time)))
    found = ProtobufSchema(KAFKA_CONNECT).whole(place() + row, 0, "it")
    assert found == {"price": "-1.50", "day": 20778, "time": 3_600_000_001}
    with pytest.raises(MalformedRequest, match="it is not what its Protobuf schema says"):
        ProtobufSchema(KAFKA_CONNECT).whole(place() + b"\x12\x02\x08\x01", 0, "it")
    with pytest.raises(MalformedRequest, match="larger than any state takes"):
        ProtobufSchema(KAFKA_CONNECT).whole(place() + b"\x0a\x06\x18\xff\xff\xff\xff\x07", 0, "it")


def test_the_type_is_the_one_at_the_place_that_the_record_names(schema: ProtobufSchema) -> None:
    assert schema.whole(place(1) + b"\x0a\x01c", 0, "it") == {"customer": "c"}
    assert schema.whole(place(0, 2, 0) + b"\x08\x03", 0, "it") == {"x": 3}
    assert schema.whole(b"head" + place(1), 4, "it") == {"customer": ""}


def test_an_enumerator_that_its_schema_lacks_is_its_number_and_other_fields_are_passed_over(
    schema: ProtobufSchema,
) -> None:
    assert schema.whole(place() + b"\x32\x02\x10\x07", 0, "it")["lines"] == [{"what": "", "kind": 7}]
    assert schema.whole(place(1) + b"\x0a\x01c\x12\x01x\x98\x06\x05", 0, "it") == {"customer": "c"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        number(1),
        number(1) + number(9),
        number(1) + number(-1),
        number(-1),
        number(1 << 40),
        b"\xff" * 12,
        number(3) + number(0) + number(0) + number(0),
        number(0) + b"\x0a\x7fabc",
        number(0) + b"\x0a\x02\xff\xff",
        number(0) + b"\x6b" * 1_000_000,
        number(0) + b"\x07",
        number(0) + b"\0\0",
    ],
    ids=lambda data: repr(data)[:40],
)
def test_bytes_that_are_no_message_are_refused(schema: ProtobufSchema, data: bytes) -> None:
    with pytest.raises(MalformedRequest, match="it is not what its Protobuf schema says"):
        schema.whole(data, 0, "it")


def test_a_message_within_itself_is_read_to_a_usual_depth_and_refused_without_end(schema: ProtobufSchema) -> None:
    def nested(depth: int) -> bytes:
        inner = b""
        for _ in range(depth):
            size, length = len(inner), b""
            while size >= 0x80:
                length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
            inner = b"\x6a" + length + bytes([size]) + inner
        return place() + inner

    assert schema.whole(nested(90), 0, "it")["inner"]["inner"]
    with pytest.raises(MalformedRequest, match="it is not what its Protobuf schema says"):
        schema.whole(nested(20_000), 0, "it")


def test_names_that_the_library_has_itself_are_names_of_fields() -> None:
    names = ["HasField", "DESCRIPTOR", "FromString", "IsInitialized", "ListFields", "from", "seconds"]
    fields = " ".join(f"optional int32 {name} = {at + 1};" for at, name in enumerate(names))
    text = f'syntax = "proto3"; message A {{ {fields} A a = 9; message CopyFrom {{}} }}'
    row = {name: at for at, name in enumerate(names)}
    data = b"".join(bytes([(at + 1) << 3, at]) for at in range(len(names)))
    found = ProtobufSchema(text).whole(place() + data + b"\x4a" + bytes([len(data)]) + data, 0, "it")
    assert found == {**row, "a": {**row, "a": None}}


def test_a_type_that_only_has_the_name_of_a_known_one_is_as_it_is() -> None:
    text = (
        'syntax = "proto3"; package google.protobuf; message A { Timestamp at = 1; } message Timestamp { int32 x = 1; }'
    )
    assert read(text, "google.protobuf.A", {}) == {"at": None}
    assert ProtobufSchema(text).whole(place() + b"\x0a\x02\x08\x01", 0, "it") == {"at": {"x": 1}}
    other = ("google/protobuf/timestamp.proto", 'syntax = "proto3"; package google.protobuf; message Timestamp {}')
    text = (
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message A { google.protobuf.Timestamp at = 1; }'
    )
    assert ProtobufSchema(text, [other]).whole(place() + b"\x0a\x02\x08\x01", 0, "it") == {"at": 1_000_000}


BEGINS = b"\0\0\0\0\x07"


class Fed:
    """A topic of Protobuf, and what its records become."""

    def __init__(self, *columns: str) -> None:
        self.source = StandInSource()
        self.source.schemas[7] = RegisteredSchema("PROTOBUF", TEXT, (ADDRESS,))
        options = FeedOptions("app", "s", key_columns(["customer"]), value_columns(columns), key_groups=8)
        encoding = ProtobufEncoding(self.source, ManualClock())
        self._mapper = RecordMapper(describe(options), RecordFormat.PROTOBUF, "src", encoding)

    def done(self, value: bytes | None, key: bytes | None = None) -> list[tuple[Any, ...]]:
        updates = [update.record for update in self._mapper.updates(SourceRecord(0, 1, key, value))]
        return [(one.operation, one.key, one.value) for one in updates]


def row(**fields: Any) -> bytes:
    return framed(7, WRITER.message("shop.Order", fields))


def test_records_of_protobuf_become_rows_and_deletions() -> None:
    fed = Fed("amount:bigint", "at:timestamp")
    assert fed.done(row(customer="c1", amount=5)) == [(0, ["c1"], [5, None])]
    assert fed.done(None, framed(7, WRITER.message("shop.Other", {"customer": "c1"}), 1)) == [(1, ["c1"], None)]
    assert fed.done(None, b"c1") == [(1, ["c1"], None)]
    assert fed.source.asked == [7], "a schema is asked for once"


def test_a_number_without_sign_is_in_a_decimal_and_one_above_a_bigint_is_refused() -> None:
    assert Fed("big:decimal(20,0)").done(row(customer="c", big=(1 << 64) - 1)) == [(0, ["c"], [(1 << 64) - 1])]
    assert Fed("big:bigint").done(row(customer="c", big=(1 << 63) - 1)) == [(0, ["c"], [(1 << 63) - 1])]
    with pytest.raises(ValueMismatch, match="big"):
        Fed("big:bigint").done(row(customer="c", big=1 << 63))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (SECRET.encode(), "does not begin with a zero byte"),
        (BEGINS, "the record's value is not what its Protobuf schema says"),
        (BEGINS + number(0) + b"\x0a\x7f" + SECRET.encode(), "the record's value is not what its Protobuf schema says"),
        (b"\0\0\0\0\x08" + number(0), "schema 8 can't be used: it is of the kind AVRO, and not Protobuf"),
        (b"\0\0\0\0\x09" + number(0), "schema 9 can't be used: protoc does not take it"),
    ],
    ids=repr,
)
def test_what_can_t_be_read_is_refused_and_not_quoted(value: bytes, says: str) -> None:
    fed = Fed("amount:bigint")
    fed.source.add(8, "string")
    fed.source.schemas[9] = RegisteredSchema("PROTOBUF", "message")
    for _ in range(2):
        with pytest.raises(MalformedRequest, match=says) as caught:
            fed.done(value)
        assert SECRET not in caught.value.message
    assert len(fed.source.asked) <= 1
