"""Avro and Protobuf by a schema registry, as feeders take them: RecordEncoding (keyhole.feed.record_encoding)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keyhole.clock import Clock
from keyhole.errors import MalformedRequest
from keyhole.feed.record_encoding import JSON, DecodedChange
from keyhole.feed.registry.avro import AvroSchema, avro_schema, read_whole
from keyhole.feed.registry.framing import HEADER_BYTES, is_framed, schema_id
from keyhole.feed.registry.protobuf import ProtobufSchema
from keyhole.feed.registry.schemas import RegisteredSchema, Schemas, SchemaSource
from keyhole.model.state import KeyColumn

_VALUE, _KEY = "the record's value", "the record's key"


class AvroEncoding:
    """Avro in Confluent's wire format: each record names the schema that wrote it. Thread-safe.

    A record is read by its own schema. So a column that its schema has not is null, and a new one of a later schema
    is there once it is named. Keys may be text or JSON beside it, as many producers write them.
    """

    def __init__(self, source: SchemaSource, clock: Clock) -> None:
        self._schemas = Schemas(source, _of_avro, clock)

    def row(self, value: bytes) -> dict[str, Any]:
        return self._object(value)[1]

    def change(self, value: bytes) -> DecodedChange:
        schema, found = self._object(value)
        return DecodedChange(schema.connect, found)

    def key(self, key: bytes, columns: Sequence[KeyColumn]) -> Any:
        return self._decoded(key, _KEY)[1] if is_framed(key) else JSON.key(key, columns)

    def _object(self, value: bytes) -> tuple[AvroSchema, dict[str, Any]]:
        schema, found = self._decoded(value, _VALUE)
        if type(found) is not dict:
            raise MalformedRequest(f"{_VALUE} is no record of Avro's")
        return schema, found

    def _decoded(self, data: bytes, what: str) -> tuple[AvroSchema, Any]:
        schema = self._schemas.of(schema_id(data, what))
        return schema, read_whole(schema, data, HEADER_BYTES, what)


class ProtobufEncoding:
    """Protobuf in the same wire format, with the place of its type in that schema before each message. Thread-safe.

    Records are rows. Of changes of a table nothing is known but what stands in the record.
    """

    def __init__(self, source: SchemaSource, clock: Clock) -> None:
        self._schemas = Schemas(source, _of_protobuf, clock)

    def row(self, value: bytes) -> dict[str, Any]:
        return self._decoded(value, _VALUE)

    def change(self, value: bytes) -> DecodedChange:
        return DecodedChange(None, self._decoded(value, _VALUE))

    def key(self, key: bytes, columns: Sequence[KeyColumn]) -> Any:
        return self._decoded(key, _KEY) if is_framed(key) else JSON.key(key, columns)

    def _decoded(self, data: bytes, what: str) -> dict[str, Any]:
        return self._schemas.of(schema_id(data, what)).whole(data, HEADER_BYTES, what)


def _of_avro(schema: RegisteredSchema) -> AvroSchema:
    _check_kind(schema, "AVRO", "Avro")
    return avro_schema(schema.text, schema.references)


def _of_protobuf(schema: RegisteredSchema) -> ProtobufSchema:
    _check_kind(schema, "PROTOBUF", "Protobuf")
    return ProtobufSchema(schema.text, schema.references)


def _check_kind(schema: RegisteredSchema, kind: str, name: str) -> None:
    if schema.kind != kind:
        raise MalformedRequest(f"it is of the kind {schema.kind}, and not {name}")
