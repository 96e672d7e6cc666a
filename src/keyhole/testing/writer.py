"""Writes epochs of a state without Spark, through the real coordinator: for tests of services that read states."""

from __future__ import annotations

import functools
import itertools
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import pyarrow as pa

from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.clock import SystemClock
from keyhole.config import JobConfig
from keyhole.coordinator.coordinator import Coordinator
from keyhole.coordinator.task_stream import stage_partition
from keyhole.encoding.columnar import OP, SEQUENCE, Op, encode
from keyhole.encoding.columnar_types import spark_name
from keyhole.errors import InvalidConfiguration, KeyMismatch
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.protocol.epochs import EpochBatch, StatePlan
from keyhole.protocol.receipts import PartitionReceipt, StageOrder
from keyhole.rpc.channels import sync_channel

Fields = Mapping[str, Any]
"""A row: its columns by name."""

_KINDS = (StateKind.VALUE, StateKind.MAP, StateKind.LIST, StateKind.BROADCAST)


class Writer:
    """The only writer of one state, as a streaming query of the state's name would be.

    Its coordinator keeps the servers' leases as long as it is open; what was written stays readable afterwards, flagged
    as `unconfirmed`. A second writer of the same state goes on where the first one ended, and ends the first one's
    rights. One thread at a time.

    Args:
        config: Application, state servers and Kafka, as a job's. Addresses are as seen from this process.
        state: Its name.
        key: The key columns' names.
        map_key: Those of the map key, which makes it a map state.
        kind: Default: a map where there is a map key, else a value; "list" and "broadcast" work too.
        schema: The types of all columns; default: those that Arrow finds in the first rows (int: bigint, float: double,
            datetime with a time zone: timestamp).
        key_groups: How many; a broadcast state always has one.
        max_length: Of a list: how many elements a key has at most; 0: any number.
        standbys: On how many servers beside the owner each key group is followed.

    Raises:
        InvalidConfiguration: A kind that needs a job (reducing, aggregating), or one that has no map key.
    """

    def __init__(
        self,
        config: JobConfig,
        state: str,
        *,
        key: str | Sequence[str],
        map_key: str | Sequence[str] = (),
        kind: str | None = None,
        schema: pa.Schema | None = None,
        key_groups: int = 8,
        max_length: int = 0,
        standbys: int = 0,
    ) -> None:
        self._config = config
        self._state = state
        self._key, self._map_key = names_of(key), names_of(map_key)
        self._kind = _checked_kind(state, kind, self._map_key)
        self._schema = schema
        self._key_groups = 1 if self._kind is StateKind.BROADCAST else key_groups
        self._max_length = max_length
        self._standbys = standbys
        self._channels: dict[str, grpc.Channel] = {}
        self._query_id = uuid.uuid4().hex
        self._batch_id = 0
        self._attempts = itertools.count(1)
        changelog = KafkaChangelog(config.bootstrap_servers, config.application)
        self._coordinator = Coordinator(config, state, changelog, SystemClock(), on_new_checkpoint="continue")

    def write(self, rows: Sequence[Fields], *, delete: Sequence[Fields] = ()) -> int:
        """Makes one epoch of the rows; returns its number when every reader sees it.

        Args:
            rows: Key, map key and value columns, by name. In a list each is appended to its key. Of a value or map, two
                rows of one key are refused.
            delete: The keys (with map keys) to delete; of a list: the keys to empty. Other columns are passed over.

        Raises:
            KeyMismatch, NullKey, ValueMismatch, DuplicateKey: The rows; nothing was written.
            StateChanged, StateConflict: The state is there already, declared otherwise.
            KafkaUnreachable, EpochFailed: Not within the configuration's `epoch_deadline_seconds`.
        """
        schema = self._schema_of(rows)
        ops = [Op.PUT] * len(rows) + [self._deletion] * len(delete)
        result = self._coordinator.run_epoch(
            EpochBatch(
                spark_query_id=self._query_id,
                batch_id=self._batch_id,
                offsets_hash=self._batch_id,
                watermark_ms=0,
                states=(StatePlan(self._descriptor(schema), standbys=self._standbys),),
                partitions=1,
                stage=functools.partial(self._stage, _batch(schema, [*rows, *delete], ops)),
            )
        )
        # Only now: what was refused is no batch, and its columns are nobody's.
        self._batch_id += 1
        self._schema = schema
        return result.epoch

    def close(self) -> None:
        """Ends the leases and the connections. Idempotent."""
        self._coordinator.close()
        for channel in self._channels.values():
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _deletion(self) -> Op:
        return Op.CLEAR if self._kind is StateKind.LIST else Op.DELETE

    def _schema_of(self, rows: Sequence[Fields]) -> pa.Schema:
        if self._schema is not None:
            return self._schema
        if not rows:
            raise InvalidConfiguration(
                f"the first rows of state {self._state!r} tell its columns' types: write some, or give a schema"
            )
        return pa.Table.from_pylist(list(rows)).schema

    def _descriptor(self, schema: pa.Schema) -> StateDescriptor:
        named = {*self._key, *self._map_key}
        return StateDescriptor(
            self._config.application,
            self._state,
            self._state,
            self._kind,
            self._key_groups,
            tuple(key_column_of(schema, name) for name in self._key),
            ValueSchema(
                1,
                tuple(ValueField(field.name, spark_name(field.type)) for field in schema if field.name not in named),
            ),
            map_key=tuple(key_column_of(schema, name) for name in self._map_key),
            max_length=self._max_length,
        )

    def _stage(self, batch: pa.RecordBatch, order: StageOrder) -> list[PartitionReceipt]:
        """What a Spark task does, for the one partition that there is."""
        # Lazily: what is wrong with the rows is then in the receipt, as of a task.
        rows = (encode(some, order.descriptors[self._state]) for some in [batch] if some.num_rows)
        return [stage_partition(order, self._state, 0, next(self._attempts), rows, self._channel)]

    def _channel(self, address: str) -> grpc.Channel:
        if address not in self._channels:
            self._channels[address] = sync_channel(address)
        return self._channels[address]


def _batch(schema: pa.Schema, rows: Sequence[Fields], ops: Sequence[Op]) -> pa.RecordBatch:
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    columns += [pa.array([str(op) for op in ops], pa.string()), pa.array(range(len(rows)), pa.int64())]
    return pa.RecordBatch.from_arrays(columns, names=[*schema.names, OP, SEQUENCE])


def names_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """The columns that are named, one or several."""
    return (given,) if isinstance(given, str) else tuple(given)


def _checked_kind(state: str, kind: str | None, map_key: tuple[str, ...]) -> StateKind:
    chosen = kind or (StateKind.MAP if map_key else StateKind.VALUE)
    if chosen not in _KINDS:
        raise InvalidConfiguration(f"state {state!r}: a Writer's kinds are {', '.join(_KINDS)}; {chosen!r} needs a job")
    if (chosen == StateKind.MAP) != bool(map_key):
        raise InvalidConfiguration(f"state {state!r}: a map has a map key, and no other kind has; this is a {chosen}")
    return StateKind(chosen)


def key_column_of(schema: pa.Schema, name: str) -> KeyColumn:
    """The column as one of a key. Raises KeyMismatch: there is none, or its type can't be a key's."""
    if name not in schema.names:
        raise KeyMismatch(f"there is no key column {name}; the columns are {', '.join(schema.names)}", column=name)
    kind = spark_name(schema.field(name).type)
    if kind not in tuple(KeyType):
        raise KeyMismatch(f"key column {name} is a {kind}; a key's columns are {', '.join(KeyType)}", column=name)
    return KeyColumn(name, KeyType(kind))
