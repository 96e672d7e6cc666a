"""What the values of a record may take of memory: a small one that comes to too much is refused before it is made."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable

import pytest

from keyhole.errors import MalformedRequest
from keyhole.feed.registry.allowance import MOST_BYTES
from keyhole.feed.registry.avro import avro_schema, read_whole
from keyhole.feed.registry.protobuf import ProtobufSchema
from tests.support.avro_records import number, record_schema
from tests.support.protobuf_records import place

MANY = 1_000_000
TOO_LARGE = "the record's value would take more than 128 MiB of memory"
IN_ONE_BYTE = ["null", "string"]


def avro(items: object, data: bytes) -> Callable[[], object]:
    schema = avro_schema(json.dumps({"type": "array", "items": items}))
    return lambda: read_whole(schema, data, 0, "the record's value")


def protobuf(text: str, data: bytes) -> Callable[[], object]:
    return lambda: ProtobufSchema(f'syntax = "proto3"; {text}').whole(place() + data, 0, "the record's value")


WIDE = " ".join(f"optional int32 f{at} = {at};" for at in range(1, 1_000))
TREE = {"type": "record", "name": "Tree", "fields": [{"name": name, "type": ["null", "Tree"]} for name in "ab"]}


def branches(depth: int) -> bytes:
    return b"\0\0" if not depth else (b"\x02" + branches(depth - 1)) * 2


@pytest.mark.parametrize(
    "read",
    [
        avro(record_schema(a=IN_ONE_BYTE), number(MANY) + bytes(MANY + 1)),
        avro({"type": "array", "items": "int"}, number(3 * MANY) + bytes(3 * MANY + 1)),
        avro({"type": "map", "values": "int"}, number(3 * MANY) + bytes(3 * MANY + 1)),
        avro(TREE, number(1) + branches(19) + b"\0"),
        protobuf(f"message A {{ repeated B b = 1; }} message B {{ {WIDE} }}", b"\x0a\0" * 100_000),
        protobuf("message A { repeated int32 n = 1; }", b"\x0a\x80\x80\x80\x02" + bytes(1 << 22)),
        protobuf("message A { map<int32, A> n = 1; }", b"\x0a\0" * 2 * MANY),
    ],
    ids=["records", "arrays", "maps", "tree", "messages", "packed", "entries"],
)
def test_a_record_of_too_many_items_is_refused(read: Callable[[], object]) -> None:
    with pytest.raises(MalformedRequest, match=TOO_LARGE):
        read()


@pytest.mark.parametrize(
    "read",
    [
        avro(record_schema(a=IN_ONE_BYTE), number(MANY) + bytes(MANY + 1)),
        protobuf(f"message A {{ repeated B b = 1; }} message B {{ {WIDE} }}", b"\x0a\0" * 100_000),
    ],
    ids=["avro", "protobuf"],
)
def test_it_is_refused_before_the_items_are_made(read: Callable[[], object]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRequest, match=TOO_LARGE):
            read()
        assert tracemalloc.get_traced_memory()[1] < 2 * MOST_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "read",
    [
        avro(record_schema(a="int", b="int", c=IN_ONE_BYTE, d="string", e="int"), number(MANY // 5) + bytes(MANY + 1)),
        avro("int", number(MANY) + bytes(MANY + 1)),
        protobuf("message A { repeated int32 n = 1; string text = 2; }", b"\x0a\xc0\x84\x3d" + bytes(MANY)),
        protobuf("message A { string text = 1; }", b"\x0a\x80\x80\x80\x02" + b"a" * (1 << 22)),
    ],
    ids=["records", "numbers", "packed", "text"],
)
def test_a_record_of_usual_size_is_read(read: Callable[[], object]) -> None:
    assert read()
