"""Avro's binary encoding as values in the forms that JSON has, by the schema that wrote it. Needs fastavro.

    long, timestamp-millis      1763719200000      ->  1763719200000000 (microseconds)
    bytes, decimal of scale 2   b"\\x96"            ->  "1.50"
    union of null and string    b"\\x02\\x04c1"      ->  "c1"

fastavro reads the schema. The records are read here. Its own reader, in C, ends the process where a record of a schema
that contains itself is nested a million times deep. It makes an array of 2^50 nulls, and takes -1 for a place in a
union. Here no record has more values than bytes, and what is nested too deep or takes too much memory is refused
(keyhole.feed.registry.allowance). So is each byte that a writer of this schema can't have written.
"""

from __future__ import annotations

import base64
import json
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fastavro.schema import parse_schema

from keyhole.encoding.value_types import json_float
from keyhole.errors import MalformedRequest, ValueMismatch
from keyhole.feed.connect import decimal_text
from keyhole.feed.registry.allowance import ITEM_BYTES, Allowance, record_bytes

ReadAvro = Callable[[bytes, int, Allowance], tuple[Any, int]]
"""Reads one value from an offset on, and says where it ends. Raises what UNREADABLE lists, or what Allowance does."""

UNREADABLE = (ValueError, IndexError, OverflowError, RecursionError, struct.error, ValueMismatch)

_UNPACK_FLOAT, _UNPACK_DOUBLE = struct.Struct("<f").unpack_from, struct.Struct("<d").unpack_from
_MOST_SHIFT = 63
_PAIR_BYTES = 160
"""Of an entry of a map, with its key, while the map is made of them."""


class AvroSchema(NamedTuple):
    """What a schema says.

    Attributes:
        read: Reads a value of it.
        connect: The same as Kafka Connect would write it, as far as the columns of a change need it.
    """

    read: ReadAvro
    connect: Mapping[str, Any]


def avro_schema(text: str, references: Sequence[tuple[str, str]] = ()) -> AvroSchema:
    """A schema from its JSON, with the names and texts of those that it refers to.

    Raises:
        MalformedRequest: It is no Avro schema, or one that is not read here; the message says why.
    """
    named: dict[str, Any] = {}
    try:
        for _, referred in references:
            parse_schema(_json(referred), named)
        parsed = parse_schema(_json(text), named)
        readers = _Readers(named)
        read, _ = readers.reader(parsed)
        return AvroSchema(read, {"fields": _connect_fields(parsed, named, depth=2)})
    except MalformedRequest:
        raise
    except Exception as error:  # noqa: BLE001 - a schema is anybody's; fastavro raises what Python does
        raise MalformedRequest(f"it is no Avro schema ({type(error).__name__})") from None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # the name of a primitive type, as some registries have it


def read_whole(schema: AvroSchema, data: bytes, start: int, what: str) -> Any:
    """The value that stands from there to the end. Raises MalformedRequest, which quotes nothing of it."""
    try:
        value, end = schema.read(data, start, Allowance(what))
    except UNREADABLE:
        raise MalformedRequest(f"{what} is not what its Avro schema says") from None
    if end != len(data):
        raise MalformedRequest(f"{what} goes on behind what its Avro schema says")
    return value


def _null(_: bytes, at: int, __: Allowance) -> tuple[None, int]:
    return None, at


def _boolean(data: bytes, at: int, _: Allowance) -> tuple[bool, int]:
    byte = data[at]
    if byte > 1:
        raise ValueError("no boolean")
    return byte == 1, at + 1


def _long(data: bytes, at: int, _: Allowance | None = None) -> tuple[int, int]:
    byte = data[at]
    at += 1
    number, shift = byte & 0x7F, 7
    while byte & 0x80:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if shift == _MOST_SHIFT and byte > 1:
            raise ValueError("more than 64 bits")
        shift += 7
    return (number >> 1) ^ -(number & 1), at


def _int(data: bytes, at: int, _: Allowance) -> tuple[int, int]:
    number, at = _long(data, at)
    if not -0x80000000 <= number <= 0x7FFFFFFF:
        raise ValueError("more than 32 bits")
    return number, at


def _float(data: bytes, at: int, _: Allowance) -> tuple[Any, int]:
    return json_float(_UNPACK_FLOAT(data, at)[0]), at + 4


def _double(data: bytes, at: int, _: Allowance) -> tuple[Any, int]:
    return json_float(_UNPACK_DOUBLE(data, at)[0]), at + 8


def _raw(data: bytes, at: int, _: Allowance) -> tuple[bytes, int]:
    size, at = _long(data, at)
    end = at + size
    if size < 0 or end > len(data):
        raise ValueError("more bytes than there are")
    return data[at:end], end


def _string(data: bytes, at: int, allowance: Allowance) -> tuple[str, int]:
    raw, at = _raw(data, at, allowance)
    return raw.decode(), at


_PRIMITIVES: Mapping[str, ReadAvro] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "string": _string,
}


def _text_of(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _thousandfold(value: int) -> int:
    return value * 1000


def _thousandth(value: int) -> int:
    return value // 1000


_IN_MICROSECONDS: Mapping[str, Callable[[int], int]] = {
    "timestamp-millis": _thousandfold,
    "local-timestamp-millis": _thousandfold,
    "timestamp-nanos": _thousandth,
    "local-timestamp-nanos": _thousandth,
    "org.apache.kafka.connect.data.Timestamp": _thousandfold,
    "io.debezium.time.Timestamp": _thousandfold,
    "io.debezium.time.NanoTimestamp": _thousandth,
}
"""Times by the logical type, or by Kafka Connect's name of the type, where a state takes another unit."""


class _Readers:
    """Makes readers of the types of one schema.

    Args:
        named: The types that have a name, by their full names.
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._made: dict[str, ReadAvro] = {}
        self._empty: dict[str, bool] = {}

    def reader(self, schema: Any) -> tuple[ReadAvro, bool]:
        """A reader, and whether its values take no byte at all."""
        if isinstance(schema, str):
            if schema == "bytes":
                return _mapped(_raw, _text_of), False
            if (primitive := _PRIMITIVES.get(schema)) is not None:
                return primitive, schema == "null"
            return self._of_name(schema)
        if isinstance(schema, list):
            return self._union([self.reader(branch)[0] for branch in schema]), False
        kind = schema["type"]
        match kind:
            case "record" | "error" | "enum" | "fixed":
                return self._of_name(schema["name"])
            case "array":
                return self._array(schema["items"]), False
            case "map":
                return self._map(schema["values"]), False
        return self._primitive(kind, schema)

    def _primitive(self, kind: Any, schema: Mapping[str, Any]) -> tuple[ReadAvro, bool]:
        logical = str(schema.get("logicalType") or schema.get("connect.name"))
        if kind in ("int", "long") and logical in _IN_MICROSECONDS:
            return _mapped(_PRIMITIVES[kind], _IN_MICROSECONDS[logical]), False
        if kind == "bytes" and logical == "decimal":
            return _decimals(_raw, schema), False
        return self.reader(kind)

    def _of_name(self, name: str) -> tuple[ReadAvro, bool]:
        """The reader of a type that has a name, which may contain itself."""
        if name not in self._empty:
            # While it is made: what contains itself does so within an array, a map or a union, which take a byte.
            self._empty[name] = False
            self._made[name], self._empty[name] = self._declared(self._named[name])
        made = self._made
        if name in made:
            return made[name], self._empty[name]
        return (lambda data, at, allowance: made[name](data, at, allowance)), False

    def _declared(self, schema: Mapping[str, Any]) -> tuple[ReadAvro, bool]:
        match schema["type"]:
            case "enum":
                return _enum(schema["symbols"]), False
            case "fixed":
                return self._fixed(schema)
        return self._record(schema["fields"])

    def _fixed(self, schema: Mapping[str, Any]) -> tuple[ReadAvro, bool]:
        size = schema["size"]
        if type(size) is not int or size < 0:
            raise ValueError("a size below 0")

        def raw(data: bytes, at: int, _: Allowance) -> tuple[bytes, int]:
            end = at + size
            if end > len(data):
                raise ValueError("more bytes than there are")
            return data[at:end], end

        match schema.get("logicalType"):
            case "decimal":
                return _decimals(raw, schema), not size
            case "uuid" if size == 16:
                return _mapped(raw, lambda value: str(uuid.UUID(bytes=value))), False
        return _mapped(raw, _text_of), not size

    def _record(self, fields: Sequence[Mapping[str, Any]]) -> tuple[ReadAvro, bool]:
        given = [(field["name"], *self.reader(field["type"])) for field in fields]
        # A field without bytes says nothing. Left out, a record has no more values than bytes, whatever its schema is.
        readers = [(name, read) for name, read, empty in given if not empty]

        size = record_bytes(len(readers)) + ITEM_BYTES * len(readers)

        def record(data: bytes, at: int, allowance: Allowance) -> tuple[dict[str, Any], int]:
            allowance.take(size)
            found = {}
            for name, read in readers:
                found[name], at = read(data, at, allowance)
            return found, at

        return record, not readers

    def _items(self, schema: Any) -> ReadAvro:
        read, empty = self.reader(schema)
        if empty:
            raise MalformedRequest("it has an array or a map of values that take no bytes: any number of them may come")
        return read

    def _array(self, items: Any) -> ReadAvro:
        read = _blocks(self._items(items))
        declared = self._named.get(items.get("name", "") if isinstance(items, Mapping) else str(items))
        if declared is None or declared.get("connect.internal.type") != "MapEntry":
            return read
        # So Kafka Connect writes a map whose keys are no strings.
        return _mapped(read, lambda entries: [[entry.get("key"), entry.get("value")] for entry in entries])

    def _map(self, values: Any) -> ReadAvro:
        value = self.reader(values)[0]  # which may take no bytes, as its key takes one

        def pair(data: bytes, at: int, allowance: Allowance) -> tuple[tuple[str, Any], int]:
            allowance.take(_PAIR_BYTES)
            key, at = _string(data, at, allowance)
            found, at = value(data, at, allowance)
            return (key, found), at

        return _mapped(_blocks(pair), dict)

    def _union(self, branches: Sequence[ReadAvro]) -> ReadAvro:
        def union(data: bytes, at: int, allowance: Allowance) -> tuple[Any, int]:
            which, at = _long(data, at)
            if which < 0:
                raise ValueError("no such branch")
            return branches[which](data, at, allowance)

        return union


def _mapped(read: ReadAvro, made: Callable[[Any], Any]) -> ReadAvro:
    def mapped(data: bytes, at: int, allowance: Allowance) -> tuple[Any, int]:
        value, at = read(data, at, allowance)
        return made(value), at

    return mapped


def _decimals(raw: ReadAvro, schema: Mapping[str, Any]) -> ReadAvro:
    scale = int(schema.get("scale", 0))
    return _mapped(raw, lambda value: decimal_text(value, scale))


def _enum(symbols: Sequence[str]) -> ReadAvro:
    def enum(data: bytes, at: int, allowance: Allowance) -> tuple[str, int]:
        which, at = _int(data, at, allowance)
        if which < 0:
            raise ValueError("no such symbol")
        return symbols[which], at

    return enum


def _blocks(item: ReadAvro) -> ReadAvro:
    def blocks(data: bytes, at: int, allowance: Allowance) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            count, at = _long(data, at)
            if count < 0:
                count = -count
                _, at = _long(data, at)  # how many bytes the block has
            if count > len(data) - at:
                raise ValueError("more items than bytes")
            if not count:
                return found, at
            allowance.take(ITEM_BYTES * count)
            for _ in range(count):
                value, at = item(data, at, allowance)
                found.append(value)

    return blocks


def _connect_fields(schema: Any, named: Mapping[str, Any], depth: int) -> list[Mapping[str, Any]]:
    """The fields of a record, and of those within it down to that depth, each with whether it may be null."""
    if isinstance(schema, list):
        others = [branch for branch in schema if branch != "null"]
        schema = others[0] if len(others) == 1 else None
    if isinstance(schema, str):
        schema = named.get(schema)
    if not depth or not isinstance(schema, Mapping) or schema.get("type") not in ("record", "error"):
        return []
    return [
        {
            "field": field["name"],
            "optional": field["type"] == "null" or (isinstance(field["type"], list) and "null" in field["type"]),
            "fields": _connect_fields(field["type"], named, depth - 1),
        }
        for field in schema["fields"]
    ]
