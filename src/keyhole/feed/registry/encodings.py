"""Avro by a schema registry, as feeders take it: a RecordEncoding (keyhole.feed.record_encoding)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keyhole.clock import Clock
from keyhole.errors import MalformedRequest
from keyhole.feed.record_encoding import JSON, DecodedChange
from keyhole.feed.registry.avro import AvroSchema, avro_schema, read_whole
from keyhole.feed.registry.framing import HEADER_BYTES, is_framed, schema_id
from keyhole.feed.registry.schemas import RegisteredSchema, Schemas, SchemaSource
from keyhole.model.state import KeyColumn

_VALUE, _KEY = "the record's value", "the record's key"


class AvroEncoding:
    """Avro in Confluent's wire format: each record names the schema that wrote it. Thread-safe.

    A record is read by its own schema. So a column that its schema has not is null, and a new one of a later schema
    is there once it is named. Keys may be text or JSON beside it, as many producers write them.
    """

    def __init__(self, source: SchemaSource, clock: Clock) -> None:
        self._schemas = Schemas(source, _made, clock)

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


def _made(schema: RegisteredSchema) -> AvroSchema:
    if schema.kind != "AVRO":
        raise MalformedRequest(f"it is of the kind {schema.kind}, and not Avro")
    return avro_schema(schema.text, schema.references)
