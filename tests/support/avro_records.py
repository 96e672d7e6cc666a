"""Records of Avro in Confluent's wire format, as another library writes them: fastavro's own writer."""

from __future__ import annotations

import io
from typing import Any

from fastavro import parse_schema, schemaless_writer


def encoded(schema: Any, value: Any) -> bytes:
    """A value, without what stands before it."""
    written = io.BytesIO()
    schemaless_writer(written, parse_schema(schema), value)
    return written.getvalue()


def framed(number: int, schema: Any, value: Any) -> bytes:
    """A record of the schema that a registry knows under this number."""
    return b"\0" + number.to_bytes(4, "big") + encoded(schema, value)


def record_schema(name: str = "Order", **fields: Any) -> dict[str, Any]:
    """A record of these fields and their types."""
    return {"type": "record", "name": name, "fields": [{"name": field, "type": of} for field, of in fields.items()]}


def number(value: int) -> bytes:
    """A number as Avro writes it: lengths, counts, branches of unions."""
    return encoded("long", value)
