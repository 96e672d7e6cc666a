"""The records of an updates topic, the real-time lane's input: updates of a state's rows, and what is said of them.
Pure.

    [1, "a1b2", 0, 991823, 0, 0, 1, ["c1"], null, [12.5]]     an update: what one row of a source does to one key
    [0, "a1b2", 17, {"0": 991900, "1": 990012}]               a boundary: all rows below these offsets were sent
    [2, "a1b2"]                                               a source's end: all of its rows were sent
    [3, 7, {"ttl_ms": 60000}]                                 rules: how updates are applied from here on

The topic has one partition per key group. A record is a JSON array in UTF-8, so that SQL can make one; its first
element is its kind, and elements behind those named here are ignored. docs/adr/real-time-updates.md has the reasons.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec

from keyhole.errors import ValueMismatch
from keyhole.model.state import StateDescriptor, StateKind, ValueSchema

PUT, DELETE = 0, 1
"""What an update does to its key. PUT merges by the state's kind: it replaces, appends, adds up."""

NO_UPDATE = 2
"""In the place of what an update does: its producer could make none of the row, and says why in the key's place."""

MOST_BLOCKS, LEAST_BLOCKS = 1_000_000, 64
"""How many blocks of numbers are remembered of a state above its boundaries, and of each of its key groups at least:
about 300 MB of them. A block is of 1,024 offsets of one partition of a source, and of one sub."""

MAX_SUB = (1 << 20) - 1
"""The highest number of a row among those that came of one offset."""

_Source = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Partition = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
_Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 48) - 1)]


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


class _NoUpdate(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """In an update's place. It is refused as what is no record, with its producer's reason."""

    source: _Source
    partition: _Partition
    offset: _Offset
    sub: int
    operation: Annotated[int, msgspec.Meta(ge=NO_UPDATE, le=NO_UPDATE)]
    schema_version: int
    why: Annotated[str, msgspec.Meta(max_length=200)]


class BoundaryRecord(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """All rows of a source below some offsets stand in the updates topic, before this record, in each partition.

    Whoever writes it has seen them acknowledged, and that their offsets are logged: none is ever sent for the first
    time behind it.

    Attributes:
        batch: Whose end it is, for people.
        ends: By partition of the source, the first offset that may not have been sent.
        topic: The name of the source's topic, for feeders; empty: not said.
        updates_id: Kafka's id of the updates topic that has these rows: in another one the boundary is refused. Empty:
            not said, so that a topic made anew while it was under way takes it for its own.
    """

    source: _Source
    batch: int
    ends: dict[_Partition, _Offset]
    topic: str = ""
    updates_id: str = ""


class EndRecord(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """All rows of a source stand in the updates topic, before this record, in each partition; it has no others.

    Attributes:
        source: Is never used again.
    """

    source: _Source


class FeedRules(msgspec.Struct, frozen=True):
    """How updates come to rows, as far as that may change while a state lives.

    Attributes:
        ttl_ms, max_length, keep_deleted_ms, reducers: See model.state.StateDescriptor.
        most_blocks: How many blocks of rows' numbers each key group remembers above the boundaries, of all sources
            together: see MOST_BLOCKS.
        rows_for_ms: For how long. Shorter than the topic keeps its records, or an owner can't come to know them again.
        schema_version: The newest of the value: rows are merged as ones of it, and updates of a newer one are refused.
    """

    ttl_ms: _Number = 0
    max_length: _Number = 0
    keep_deleted_ms: _Number = 0
    most_blocks: Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)] = 16_384
    rows_for_ms: Annotated[int, msgspec.Meta(ge=1, le=(1 << 48) - 1)] = 12 * 3_600_000
    schema_version: Annotated[int, msgspec.Meta(ge=1)] = 1
    reducers: tuple[str, ...] = ()

    @classmethod
    def of(cls, descriptor: StateDescriptor) -> FeedRules:
        """As a state is declared. Whoever owns all of its key groups remembers MOST_BLOCKS."""
        return cls(
            descriptor.ttl_ms,
            descriptor.max_length,
            descriptor.keep_deleted_ms,
            max(LEAST_BLOCKS, MOST_BLOCKS // descriptor.key_groups),
            schema_version=descriptor.value.version,
            reducers=descriptor.reducers,
        )

    def misfit(self, descriptor: StateDescriptor) -> str | None:
        """Why they are not of this state; None: they may be. What is stored depends on whether there is a ttl."""
        if bool(self.ttl_ms) is not bool(descriptor.ttl_ms):
            return "a state has a ttl from its start on, or never"
        if self.keep_deleted_ms and not descriptor.order_by:
            return "deletions are remembered by an order, and the state has none"
        value = self._value(descriptor)
        if value is None:
            return f"it has no schema version {self.schema_version}"
        if len(self.reducers) != (len(value.fields) if descriptor.kind is StateKind.REDUCING else 0):
            return f"{len(self.reducers)} reducers are not those of schema version {value.version}"
        return None

    def applied_to(self, descriptor: StateDescriptor) -> StateDescriptor:
        """The descriptor with what these rules say, where they are not a misfit: as it was at their schema version."""
        value = self._value(descriptor)
        assert value is not None
        return msgspec.structs.replace(
            descriptor,
            ttl_ms=self.ttl_ms,
            max_length=self.max_length,
            keep_deleted_ms=self.keep_deleted_ms,
            value=value,
            earlier=tuple(schema for schema in descriptor.earlier if schema.version < value.version),
            reducers=self.reducers,
        )

    def _value(self, descriptor: StateDescriptor) -> ValueSchema | None:
        schemas = (*descriptor.earlier, descriptor.value)
        return next((schema for schema in schemas if schema.version == self.schema_version), None)


class RulesRecord(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """By which rules the updates behind it are applied. Nothing before the first of these is.

    So what the log comes to is known by the log alone, though a state is declared with another ttl, or schema, one day.

    Attributes:
        generation: Of the run that writes it. Rules of an older one, or of this one again, change nothing.
    """

    generation: Annotated[int, msgspec.Meta(ge=1)]
    rules: FeedRules


class LoggedUpdate(NamedTuple):
    """A record of an updates partition as it stands in the log.

    Attributes:
        timestamp_ms: The broker's, by which entries expire; 0: it has none.
    """

    offset: int
    timestamp_ms: int
    value: bytes | None


Record: TypeAlias = UpdateRecord | BoundaryRecord | EndRecord | RulesRecord

_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
_no_update = msgspec.json.Decoder(_NoUpdate)


def decode(value: bytes | None) -> Record:
    """What stands in one record of an updates topic. Its key and headers have no meaning.

    Raises:
        ValueMismatch: It is none of ours. The message says which element is wrong, and how; or why its producer made
            no update of the row.
    """
    try:
        return _decoder.decode(value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # ValidationError is a DecodeError
        raise ValueMismatch(_given_reason(value) or f"not a record of an updates topic: {error}") from None


def _given_reason(value: bytes | None) -> str | None:
    """Its producer's, as one line; None: it gives none."""
    try:
        why = _no_update.decode(value or b"").why
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return f"its producer made no update of the row: {' '.join(why.split())}"


def encode(record: Record) -> bytes:
    """The record's value. The inverse of `decode`."""
    return msgspec.json.encode(record)
