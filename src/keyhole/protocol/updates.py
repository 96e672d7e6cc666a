"""The records of an updates topic, the real-time lane's input: updates of a state's rows, and boundaries. Pure.

    [1, "a1b2", 0, 991823, 0, 0, 1, ["c1"], null, [12.5]]     an update: what one row of a source does to one key
    [0, "a1b2", 17, {"0": 991900, "1": 990012}]               a boundary: all rows below these offsets were sent

The topic has one partition per key group. A record is a JSON array in UTF-8, so that SQL can make one; its first
element is its kind, and elements behind those named here are ignored. docs/adr/real-time-updates.md has the reasons.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec

from keyhole.errors import ValueMismatch

PUT, DELETE = 0, 1
"""What an update does to its key. PUT merges by the state's kind: it replaces, appends, adds up."""

MAX_SUB = (1 << 20) - 1
"""The highest number of a row among those that came of one offset."""

_Source = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Partition = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
_Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class SourceRow(NamedTuple):
    """Which row of which source an update came of: its identity, by which a repetition is known.

    Attributes:
        source: Stands for one topic, by Kafka's id of it, and for one way from its records to rows (a branch of a
            union, a query); or for one producer. A name that is never used for another one.
        partition: Of the source's topic.
        offset: In that partition.
        sub: Which of the rows that the record at that offset was made into; 0 to MAX_SUB.
    """

    source: str
    partition: int
    offset: int
    sub: int


class UpdateRecord(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """One update of one key.

    Attributes:
        source, partition, offset, sub: See SourceRow.
        operation: PUT or DELETE.
        schema_version: Of the state's value schema, by which `value` is read.
        key: One element per key column, as JSON has it.
        map_key: The same of the map key; None: the state has none, or all entries of the key are deleted.
        value: One element per field of the value; None: a deletion has none.
    """

    source: _Source
    partition: _Partition
    offset: _Offset
    sub: Annotated[int, msgspec.Meta(ge=0, le=MAX_SUB)]
    operation: Annotated[int, msgspec.Meta(ge=PUT, le=DELETE)]
    schema_version: Annotated[int, msgspec.Meta(ge=1)]
    key: list[Any]
    map_key: list[Any] | None = None
    value: list[Any] | None = None

    @property
    def row(self) -> SourceRow:
        return SourceRow(self.source, self.partition, self.offset, self.sub)


class BoundaryRecord(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """All rows of a source below some offsets stand in the updates topic, before this record, in each partition.

    Whoever writes it has seen them acknowledged, and that their offsets are logged: none is ever sent for the first
    time behind it.

    Attributes:
        batch: Whose end it is, for people.
        ends: By partition of the source, the first offset that may not have been sent.
    """

    source: _Source
    batch: int
    ends: dict[_Partition, _Offset]


Record: TypeAlias = UpdateRecord | BoundaryRecord

_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def decode(value: bytes | None) -> Record:
    """What stands in one record of an updates topic. Its key and headers have no meaning.

    Raises:
        ValueMismatch: It is none of ours. The message says which element is wrong, and how.
    """
    try:
        return _decoder.decode(value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # ValidationError is a DecodeError
        raise ValueMismatch(f"not a record of an updates topic: {error}") from None


def encode(record: Record) -> bytes:
    """The record's value. The inverse of `decode`."""
    return msgspec.json.encode(record)
