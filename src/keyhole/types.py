"""The words of the design as frozen values. Pure: standard library and msgspec only."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from keyhole.ready import ready


class StateKind(enum.StrEnum):
    """What a state holds per key."""

    VALUE = "value"
    REDUCING = "reducing"
    MAP = "map"
    LIST = "list"
    AGGREGATING = "aggregating"
    BROADCAST = "broadcast"


class TtlClock(enum.StrEnum):
    """The time by which entries expire. EVENT_TIME: the watermark of the query."""

    PROCESSING_TIME = "processing_time"
    EVENT_TIME = "event_time"


class Stale(enum.StrEnum):
    """Whether a copy other than the confirmed owner's may answer a read.

    NEVER: the owner alone, while its lease is valid. WHEN_NEEDED: the owner where it answers in time, else any copy
    that meets the caller's bounds. ALWAYS: any such copy.
    """

    NEVER = "never"
    WHEN_NEEDED = "when_needed"
    ALWAYS = "always"


class ReadBounds(NamedTuple):
    """What an answer must meet. One that can't be met is an error that says why.

    Attributes:
        min_epoch: It holds this epoch or a later one.
        max_staleness_ms: It holds all that was complete so long ago; 0: no bound.
    """

    min_epoch: int = 0
    stale: Stale = Stale.WHEN_NEEDED
    max_staleness_ms: int = 0


class KeyType(enum.StrEnum):
    """The types a key column may have, by Spark's names. The key group depends on the type, not only on the value."""

    STRING = "string"
    BINARY = "binary"
    BOOLEAN = "boolean"
    SMALLINT = "smallint"
    INT = "int"
    BIGINT = "bigint"
    DATE = "date"
    TIMESTAMP = "timestamp"


class KeyColumn(msgspec.Struct, frozen=True):
    """One column of a key."""

    name: str
    type: KeyType


class ValueField(msgspec.Struct, frozen=True):
    """One field of a value.

    Attributes:
        type: Spark's own name: "double", "decimal(10,2)", "array<struct<a:int>>".
        default: What rows that were written before the field was added have in its place: MessagePack, as in a row.
            Empty: null.
    """

    name: str
    type: str
    nullable: bool = True
    default: bytes = b""


class ValueSchema(msgspec.Struct, frozen=True):
    """The fields of a value, in the order in which they stand in its row."""

    version: int
    fields: tuple[ValueField, ...]


LIST_POSITION = KeyColumn("position", KeyType.BIGINT)
"""By which the elements of a list are ordered: grows with each append."""


@ready
class StateDescriptor(msgspec.Struct, frozen=True):
    """All that a reader or a server must know of a state. Immutable, but for `value`, while its changelog topic lives.

    Attributes:
        query: The only query that writes the state.
        key_groups: 1 to 65,536; also the changelog's number of partitions.
        order_by: Name of the value field whose highest value wins; empty: none.
        topic_id: Kafka's id of the changelog topic: the identity of the state. Empty before the topic exists.
        reducers: Kind REDUCING: how each field of the value is merged, in the order of the fields.
        map_key: The second-level key, by which the entries of a key are ordered: of a map state, and of a reducing one
            if it has one.
        earlier: The schemas that `value` evolved from: stored rows may be of any of them.
        ttl_ms: How long an entry lives after it was last written; 0: until it is deleted.
        max_length: Kind LIST: how many elements a key has at most, the last ones; 0: any number.
        keep_deleted_ms: With `order_by`: how long a deletion is remembered, with its order; 0: deletions have none, and
            count whatever the rows' orders.
        class_version: Of the job's class that makes what is stored (an aggregator, operator or codec), 1 to 255; 0:
            there is none, or an earlier release has recorded the state, to which all were of version 1.
    """

    application: str
    state: str
    query: str
    kind: StateKind
    key_groups: int
    key: tuple[KeyColumn, ...]
    value: ValueSchema
    order_by: str = ""
    topic_id: str = ""
    reducers: tuple[str, ...] = ()
    map_key: tuple[KeyColumn, ...] = ()
    earlier: tuple[ValueSchema, ...] = ()
    ttl_ms: int = 0
    ttl_clock: TtlClock = TtlClock.PROCESSING_TIME
    max_length: int = 0
    keep_deleted_ms: int = 0
    class_version: int = 0

    @property
    def entry_key(self) -> tuple[KeyColumn, ...]:
        """By what the entries of a scan are ordered: the map key, an element's position, or the key of a broadcast
        state, which is scanned whole. Of other states nothing."""
        if self.kind is StateKind.BROADCAST:
            return self.key
        return (LIST_POSITION,) if self.kind is StateKind.LIST else self.map_key

    @property
    def scan_key(self) -> tuple[KeyColumn, ...]:
        """What a scan is given: the key; of a broadcast state nothing."""
        return () if self.kind is StateKind.BROADCAST else self.key

    @property
    def topic(self) -> str:
        """Name of the changelog topic."""
        return f"keyhole.{self.application}.{self.state}"


class Role(enum.StrEnum):
    """What a server is to a key group."""

    OWNER = "owner"
    STANDBY = "standby"


class Source(msgspec.Struct, frozen=True):
    """Who answered, and as of when. Every answer has one.

    Attributes:
        epoch: The epoch whose changes the answer holds; 0: none was committed yet.
        commit_time: When that epoch's rows were all staged and its commit was decided, UTC; None with epoch 0.
        watermark: The event-time watermark of that epoch, UTC; None where the query has none.
        unconfirmed: The owner has not heard of its coordinator for the lease time: a newer owner may exist.
        as_of: The answer holds all that was complete at this time, by the coordinator's clock; None: not known.
        lag_epochs: How many complete epochs this copy is known to lack; an owner lacks none.
    """

    server: str
    role: Role
    epoch: int
    commit_time: datetime | None
    watermark: datetime | None
    generation: int
    assignment_version: int
    unconfirmed: bool
    as_of: datetime | None = None
    lag_epochs: int = 0


class Answer(msgspec.Struct, frozen=True):
    """The answer to one lookup. `value` is an immutable row (codec.Row), None where the key is absent.

    True where the key was found, whatever its value is.
    With `epoch` 0 nothing was committed yet: that a key is not found then says nothing of it.
    """

    found: bool
    value: Any
    source: Source

    def __bool__(self) -> bool:
        return self.found

    @property
    def epoch(self) -> int:
        return self.source.epoch

    @property
    def commit_time(self) -> datetime | None:
        return self.source.commit_time

    @property
    def server(self) -> str:
        return self.source.server

    @property
    def role(self) -> Role:
        return self.source.role


class Entry(NamedTuple):
    """One entry of a key: its map key (one value, or a tuple where there are several columns) and its value.

    Of a list the map key is the element's position, which grows with each append.
    """

    map_key: Any
    value: Any


class Entries(msgspec.Struct, frozen=True):
    """The answer to a scan: entries of one key in order, all as of one epoch; empty where there are none."""

    entries: tuple[Entry, ...]
    source: Source

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __getitem__(self, index: int) -> Entry:
        return self.entries[index]

    @property
    def values(self) -> tuple[Any, ...]:
        """Without the map keys: the elements of a list."""
        return tuple(entry.value for entry in self.entries)

    @property
    def epoch(self) -> int:
        return self.source.epoch


class Run(msgspec.Struct, frozen=True):
    """One start of one query. A server obeys the highest generation it has seen, and one run per generation."""

    application: str
    query: str
    generation: int
    run_id: str


class Position(NamedTuple):
    """How far a copy of one key group has followed its changelog partition.

    Attributes:
        offset: The next changelog offset to read.
        epoch: The epoch of the last marker applied; 0: none.
        generation: The generation of the run that wrote that marker.
        checksum: That marker's checksum (sum over the epoch's staged rows of crc32(storage key, value) modulo 2^64).
        commit_time_ms: That marker's, milliseconds since 1970, UTC.
        watermark_ms: That marker's; 0: none.
    """

    offset: int
    epoch: int
    generation: int
    checksum: int
    commit_time_ms: int = 0
    watermark_ms: int = 0


START = Position(offset=0, epoch=0, generation=0, checksum=0)
