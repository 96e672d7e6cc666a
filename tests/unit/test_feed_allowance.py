"""What the values of a record may take of memory: a small one that comes to too much is refused before it is made."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable

import pytest

from keyhole.errors import MalformedRequest
from keyhole.feed.registry.allowance import MOST_BYTES
from keyhole.feed.registry.avro import avro_schema, read_whole
from tests.support.avro_records import number, record_schema

MANY = 1_000_000
IN_ONE_BYTE = ["null", "string"]


def avro(items: object, data: bytes) -> Callable[[], object]:
    schema = avro_schema(json.dumps({"type": "array", "items": items}))
    return lambda: read_whole(schema, data, 0, "the record's value")


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
    ],
    ids=["records", "arrays", "maps", "tree"],
)
def test_a_record_of_too_many_items_is_refused_before_they_are_made(read: Callable[[], object]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRequest, match=r"the record's value would take more than 128 MiB of memory"):
            read()
        assert tracemalloc.get_traced_memory()[1] < 2 * MOST_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "read",
    [
        avro(record_schema(a="int", b="int", c=IN_ONE_BYTE, d="string", e="int"), number(MANY // 5) + bytes(MANY + 1)),
        avro("int", number(MANY) + bytes(MANY + 1)),
    ],
    ids=["records", "numbers"],
)
def test_a_record_of_usual_size_is_read(read: Callable[[], object]) -> None:
    assert read()
