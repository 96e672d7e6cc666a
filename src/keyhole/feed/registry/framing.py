"""Confluent's wire format: what stands before a record that a serializer of the schema registry wrote. Pure.

b"\\0" + 0x00000007 + b"..."    ->  schema 7; the value begins at byte 5
"""

from __future__ import annotations

from keyhole.errors import MalformedRequest

_MAGIC = 0
HEADER_BYTES = 5


def is_framed(data: bytes) -> bool:
    """Whether it may be of that format."""
    return len(data) >= HEADER_BYTES and data[0] == _MAGIC


def schema_id(data: bytes, what: str) -> int:
    """The id of the schema. Raises MalformedRequest: it is not of that format; the message quotes nothing of it."""
    if not is_framed(data):
        raise MalformedRequest(
            f"{what} does not begin with a zero byte and the four bytes of a schema's id: it was not written with the "
            "schema registry"
        )
    # Registries give ids from 1 on, of 31 bits, and refuse others as they refuse a wrong URL. What begins with another
    # number is something else, as a number of 8 bytes.
    number = int.from_bytes(data[1:HEADER_BYTES], "big", signed=True)
    if number < 1:
        raise MalformedRequest(f"{what} names schema {number}, and ids of schemas are from 1 on")
    return number
