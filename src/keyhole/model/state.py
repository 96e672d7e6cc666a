"""What a state is: its kind, the columns of its keys and values, and its descriptor. Frozen values, pure."""

from __future__ import annotations

import enum

import msgspec

from keyhole.hints import ready


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
    """One column of a key: its name, and its type by Spark's name."""

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


KEPT_EPOCHS = 3
"""How many epochs a state can be read as of, the last one included, where its job does not say. A dashboard that reads
two states one after the other needs two; the third is for the epoch that is committed meanwhile."""

MOST_KEPT_EPOCHS = 100
DEFAULT_KEEP_DELETED_MS = 86_400_000
"""How long a deletion is remembered by default: as long as Kafka keeps the tombstones of a compacted topic."""

DEFAULT_KEY_GROUPS = 64
# Of a state that a topic feeds: each is a partition of two topics, and costs requests to Kafka for each event.
FED_KEY_GROUPS = 16
MAX_KEY_GROUPS = 65_536


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
        class_version: Of the job's class that makes what is stored (an aggregator, operator or codec), 1 to 255. 0:
            there is none, or an earlier release has recorded the state, to which all were of version 1.
        updates_topic_id: Kafka's id of the updates topic that feeds the state, in the real-time lane; empty: epochs do.
        keep_epochs: How many epochs readers may ask for by their number, the last one included; 0: KEPT_EPOCHS.
        index: Names of fields of the value, of each of which servers keep an index.
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
    updates_topic_id: str = ""
    keep_epochs: int = 0
    index: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """APPLICATION/STATE, as people write it; `keyhole.model.state_path` is the inverse."""
        return f"{self.application}/{self.state}"

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
