"""Topics whose fields have names that somebody gives a meaning to: from the words of `keyhole feed` to what is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from keyhole.cli.feed import feed_options
from keyhole.encoding.codec import StateCodec
from keyhole.errors import InvalidConfiguration
from keyhole.feed.column_text import quoted
from keyhole.feed.feed_options import describe
from keyhole.feed.mapping import RecordMapper
from keyhole.feed.record_encoding import JSON, RecordEncoding
from keyhole.feed.registry.encodings import AvroEncoding, ProtobufEncoding
from keyhole.feed.registry.schemas import RegisteredSchema
from keyhole.feed.rows import SourceRecord
from keyhole.protocol.registration import settled
from keyhole.protocol.updates import DELETE, UpdateRecord, decode, encode
from keyhole.testing.clock import ManualClock
from services.state_server.write.update_reader import UpdateReader
from tests.support.avro_records import framed, record_schema
from tests.support.hostile_names import OF_FIELDS, OF_KEYS, attribute
from tests.support.http_values import plain
from tests.support.known_commands import known_commands
from tests.support.of_all import of_all
from tests.support.protobuf_records import framed as of_protobuf
from tests.support.schema_registry import StandInSource

NUMBERS = {name: number for number, name in enumerate(OF_KEYS)}
FIELDS = dict(zip(OF_FIELDS, range(len(OF_FIELDS)), strict=True))
# What Avro and Protobuf let a field be called.
PLAIN = [name for name in OF_FIELDS if re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name)]
TURNS = [[[*OF_KEYS][(turn + role) % 3 :: 3] for role in range(3)] for turn in range(3)]
"""Each name is a key column in one, a map key in one, a value in one."""


class Topic:
    """A topic, and the state that is made of it by these words."""

    def __init__(self, *words: str, encoding: RecordEncoding = JSON) -> None:
        options = feed_options(known_commands().parse_args(["feed", "app/names", "--topic", "orders", *words]))
        self.of = settled(None, describe(options))
        self._mapper = RecordMapper(
            self.of, options.format, "src", encoding, columns=options.columns, deletions=options.deletions
        )

    def updates(self, value: bytes | None, key: bytes | None = None) -> list[UpdateRecord]:
        """As they stand in the updates topic."""
        made = self._mapper.updates(SourceRecord(0, 1, key, value))
        return [update for one in made if isinstance(update := decode(encode(one.record)), UpdateRecord)]

    def read(self, value: bytes) -> tuple[Any, Any, Any]:
        """What a reader has of one record: the key, the map key, the value."""
        (update,) = self.updates(value)
        codec = StateCodec(self.of)
        storage_key, row = UpdateReader(self.of).read(update, 0)
        assert isinstance(row, bytes)
        return *codec.entry(storage_key), codec.decode_row(row)


def words(option: str, names: Iterable[str], form: Callable[[str], str] = "{}:int".format) -> list[str]:
    return [word for name in names for word in (option, form(quoted(name)))]


def check(row: Any, expected: Mapping[str, Any]) -> None:
    """By item, by attribute, and as a whole."""
    assert plain(row) == expected
    for name, value in expected.items():
        assert plain(row[name]) == value
        if spelled := attribute(name):
            assert plain(getattr(row, spelled)) == value


def varint(value: int) -> bytes:
    """A number as Protobuf writes it."""
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def some(names: Iterable[str]) -> dict[str, int]:
    return {name: NUMBERS[name] for name in names}


@of_all([*enumerate(TURNS)])
def test_fields_of_any_name_are_keys_map_keys_and_values(turn: int, parts: list[list[str]]) -> None:
    key, map_key, value = parts
    record = json.dumps(NUMBERS).encode()
    keys = words("--key", key)
    found = Topic(*keys, *words("--map-key", map_key), *words("--value", value)).read(record)
    assert found[:2] == (tuple(some(key).values()), tuple(some(map_key).values()))
    check(found[2], some(value))
    one, other = value[:2]
    ordered = Topic(*keys, *words("--value", value), "--order-by", one, *words("--index", value, str))
    assert (ordered.of.order_by, ordered.of.index) == (one, tuple(value))
    check(ordered.read(record)[2], some(value))
    summed = Topic(*keys, *words("--reduce", value, "{}:int=sum".format))
    check(summed.read(record)[2], some(value))
    renamed = Topic(*keys, "--reduce", f"{quoted(one)}=sum:{quoted(other)}:int", "--reduce", f"n=count:{quoted(one)}")
    check(renamed.read(record)[2], {one: NUMBERS[other], "n": 1})


@of_all(OF_KEYS)
def test_a_field_of_any_name_says_what_is_deleted_and_a_records_key_which_row(name: str) -> None:
    key = [*words("--key", [name]), "--key", '"another one":int', "--value", "n"]
    deleting = Topic("--key", "k", "--value", "n", "--delete-when", f"{quoted(name)}=true")
    (update,) = deleting.updates(json.dumps({"k": "a", "n": "x", name: True}).encode())
    assert (update.operation, update.key) == (DELETE, ["a"])
    (update,) = Topic(*key).updates(None, json.dumps({name: 7, "another one": 8}).encode())
    assert (update.operation, update.key) == (DELETE, [7, 8])


@of_all(OF_KEYS)
def test_a_field_of_any_name_is_in_the_changes_of_a_table_by_its_schema_or_without(name: str) -> None:
    topic = Topic("--format", "debezium", *words("--key", ["k"]), "--value", f"{quoted(name)}:date")
    change = {"op": "c", "before": None, "after": {"k": 1, name: 20_000}}
    after = [{"field": "k", "type": "int32"}, {"field": name, "type": "int32", "name": "io.debezium.time.Date"}]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": after}]}
    for value in (change, {"schema": schema, "payload": change}):
        key, _, row = topic.read(json.dumps(value).encode())
        assert (key, row[name].isoformat()) == ((1,), "2024-10-04")


def test_fields_of_structs_have_any_name() -> None:
    struct = f"struct<{','.join(f'{name}:bigint' for name in FIELDS)}>"
    given = {"k": "a", "one": FIELDS, "several": [FIELDS, None]}
    _, _, row = Topic("--key", "k", "--value", f"one:{struct}", "--value", f"several:array<{struct}>").read(
        json.dumps(given).encode()
    )
    check(row.one, FIELDS)
    check(row.several[0], FIELDS)
    assert row.several[1] is None


def test_fields_of_any_name_that_avro_and_protobuf_take_are_read_from_them() -> None:
    expected = {name: NUMBERS[name] for name in PLAIN}
    assert len(expected) > 20
    source = StandInSource()
    schema = record_schema(**dict.fromkeys(PLAIN, "int"))
    source.add(7, schema)
    columns = [*words("--key", PLAIN[:1]), *words("--value", PLAIN[1:]), "--registry", "http://registry"]
    key, _, row = Topic("--format", "avro", *columns, encoding=AvroEncoding(source, ManualClock())).read(
        framed(7, schema, expected)
    )
    assert dict(zip(PLAIN, key, strict=False)) | plain(row) == expected
    text = "\n".join(f"optional int32 {name} = {number};" for number, name in enumerate(PLAIN, 1))
    text = f'syntax = "proto3"; package shop; message Order {{ {text} }}'
    source.schemas[8] = RegisteredSchema("PROTOBUF", text)
    # Not by Google's classes, which can't have a field called DESCRIPTOR.
    message = b"".join(varint(number << 3) + varint(expected[name]) for number, name in enumerate(PLAIN, 1))
    key, _, row = Topic("--format", "protobuf", *columns, encoding=ProtobufEncoding(source, ManualClock())).read(
        of_protobuf(8, message)
    )
    assert dict(zip(PLAIN, key, strict=False)) | plain(row) == expected


@pytest.mark.parametrize("name", ["", "a\0b", "_keyhole_op", "_KEYHOLE_x"])
def test_what_no_column_can_be_called_is_refused_by_its_name(name: str) -> None:
    of = (
        words("--key", [name]),
        words("--map-key", [name]),
        words("--value", [name]),
        words("--reduce", [name], "{}=last".format),
    )
    for part in of:
        more = [] if "--key" in part else ["--key", "k"]
        more += [] if {"--value", "--reduce"} & {*part} else ["--value", "n"]
        with pytest.raises(InvalidConfiguration, match="no column can be called") as caught:
            Topic(*part, *more)
        assert repr(name) in caught.value.message
