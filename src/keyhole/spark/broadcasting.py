"""Broadcast states as a job reads them: whole, and the same again when a batch is run again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame
from pyspark.sql import types as spark
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from keyhole.arrow import Op, ipc_stream
from keyhole.client import Client
from keyhole.errors import InvalidConfiguration, UnknownApplication, UnknownState
from keyhole.spark.batch import MicroBatch, classic, current
from keyhole.spark.lookup import as_arrow, spark_type, value_schema
from keyhole.spark.schema import struct
from keyhole.state_path import state_path
from keyhole.types import Entries, StateDescriptor, StateKind

_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager"
_EPOCH = b"keyhole_epoch"
_KEY = b"keyhole_key"
OP = "op"
"""The column of `updates` that says what became of an entry."""
# Of so many batches Spark keeps the logs.
_KEPT_BATCHES = "spark.sql.streaming.minBatchesToRetain"


class BroadcastReader:
    """Gives each batch of a query the content of a broadcast state, and always the same to the same batch.

        thresholds = BroadcastReader("rules-app/thresholds", proxy="localhost:7400")

        def process(readings, batch_id):
            sink(alerts(readings, thresholds.read(readings)), batch_id)

    What a batch reads is written to its query's checkpoint before the batch's first stage, as Spark writes the offsets
    that it reads from its sources: a batch that is run again, by whichever driver, reads that. `updates` are what has
    changed since the batch before. Read-only.

    Args:
        state: APPLICATION/STATE, of kind broadcast.
        proxy: host:port of a client proxy.
        timeout: Seconds that a read may take.
        or_empty: The columns of the key and of the value, as Spark writes a schema: a batch that runs before anything
            has been broadcast then reads no entries of these columns. Default: it can't be run. Batches after one that
            has read some wait for the servers that have them.
    """

    def __init__(self, state: str, *, proxy: str, timeout: float = 30.0, or_empty: str | StructType = "") -> None:
        self._application, self._state = state_path(state)
        self._proxy = proxy
        self._timeout = timeout
        self._or_empty = or_empty

    def read(self, data: DataFrame) -> DataFrame:
        """All entries, one row each: the key's columns, then the value's. On the thread that Spark calls.

        Args:
            data: As foreachBatch gave it, or made of that.

        Raises:
            UnknownApplication, UnknownState: Nothing has been broadcast yet, and there is no `or_empty`.
            EpochNotReached: No server has come as far as what the query's batches before this one have read.
            InvalidConfiguration: The state is of another kind; or called outside of foreachBatch.
            KeyholeError: The state can't be read now.
        """
        content = self._pinned(classic(data))
        return classic(data).sparkSession.createDataFrame(content.replace_schema_metadata(None))

    def updates(self, data: DataFrame) -> DataFrame:
        """The entries that differ from what the query's batch before this one had read, one row each; and `op`.

        So each batch knows which updates are new to it, and each update is new to one batch only, also where that is
        run again, by whichever driver: a job that lets it change the state of every key does so exactly once. The first
        batch has all entries. Of an entry that was changed several times between two batches there is the last change;
        one that is as it was before has none. As `read`, which each batch must call, or this.

        Returns:
            The columns of `read`, and `op`: "put", or "delete": the entry as it was before, where it had these columns.
        """
        frame = classic(data)
        batch = current(frame)
        pins = self._pins(frame, batch)
        number = pins.latest_before(batch.number)
        now = self._pinned(frame)
        before = None if number is None else _decoded(pins.read(number))
        if OP in now.schema.names:
            raise InvalidConfiguration(
                f"state {self._application}/{self._state} has a column {OP!r} of its own, so its updates can't be told "
                "by one of that name; rename it where the state is broadcast"
            )
        schema = StructType([*from_arrow_schema(now.schema).fields, spark.StructField(OP, spark.StringType())])
        rows = pa.Table.from_pylist(changes(before, now), to_arrow_schema(schema, timezone="UTC"))
        return frame.sparkSession.createDataFrame(rows)

    def epoch(self, data: DataFrame) -> int:
        """The epoch of the broadcast state that the batch reads; 0: nothing had been broadcast. As `read`."""
        return _epoch(self._pinned(classic(data)))

    def _pinned(self, frame: ClassicDataFrame) -> pa.Table:
        batch = current(frame)
        pins = self._pins(frame, batch)
        content = pins.read(batch.number)
        if content is None:
            before = pins.latest_before(batch.number)
            content = ipc_stream(self._fetched(0 if before is None else _epoch(_decoded(pins.read(before)))))
            if pins.has(batch.number - 1):  # else an older one is what this batch's updates are told from
                kept = int(frame.sparkSession.conf.get(_KEPT_BATCHES) or 0)
                pins.forget(batch.number - max(kept, 2))
            pins.write(batch.number, content)
        return _decoded(content)

    def _pins(self, frame: ClassicDataFrame, batch: MicroBatch) -> _Pins:
        return _Pins(frame, batch.query, f"{self._application}.{self._state}")

    def _fetched(self, least: int) -> pa.Table:
        """As of an epoch that is no earlier than `least`: a copy that is behind takes nothing back."""
        with Client(self._proxy, timeout=self._timeout) as client:
            try:
                descriptor = client.describe_state(self._application, self._state)
            except (UnknownApplication, UnknownState):
                # Once there was something, servers and proxies that know of nothing have only just started.
                if not self._or_empty or least > 0:
                    raise
                return _table_of(struct("or_empty", self._or_empty), [], [], 0)
            if descriptor.kind is not StateKind.BROADCAST:
                raise InvalidConfiguration(
                    f"state {self._application}/{self._state} is of kind {descriptor.kind}; only a broadcast state can "
                    "be read whole. Make it one with queryable.broadcast, or look its keys up with queryable.lookup"
                )
            return _table(descriptor, client.scan(self._application, self._state, (), min_epoch=least))


def _table(descriptor: StateDescriptor, entries: Entries) -> pa.Table:
    key = [spark.StructField(column.name, spark_type(column.type.value)) for column in descriptor.key]
    single = len(descriptor.key) == 1
    keys = [(entry.map_key,) if single else entry.map_key for entry in entries]
    names = [field.name for field in key]
    # The value by its names: its fields may have changed since it was described.
    rows = [dict(zip(names, of, strict=True)) | as_arrow(entry.value) for of, entry in zip(keys, entries, strict=True)]
    return _table_of(spark.StructType([*key, *value_schema(descriptor).fields]), names, rows, entries.epoch)


def _table_of(schema: StructType, key: Sequence[str], rows: list[dict[str, Any]], epoch: int) -> pa.Table:
    columns = to_arrow_schema(schema, timezone="UTC")
    metadata = {_EPOCH: str(epoch).encode(), _KEY: json.dumps(list(key)).encode()}
    return pa.Table.from_pylist(rows, columns.with_metadata(metadata))


def changes(before: pa.Table | None, now: pa.Table) -> list[dict[str, Any]]:
    """What became of the entries: each that is new or another one, with the op "put", then each that is gone.

    Entries are compared by the columns that both have: a column that was added, or dropped, changes no entry.
    """
    key = _key(now) or _key(before)
    held, holds = _by_key(key, before), _by_key(key, now)
    names = now.schema.names if before is None else [name for name in now.schema.names if name in before.schema.names]

    def content(row: dict[str, Any]) -> str:
        return repr([row[name] for name in names])  # as text, in which NaN is NaN

    put = [row for key, row in holds.items() if key not in held or content(held[key]) != content(row)]
    gone = [row for key, row in held.items() if key not in holds]
    return [row | {OP: Op.PUT.value} for row in put] + [
        {name: row.get(name) for name in now.schema.names} | {OP: Op.DELETE.value} for row in gone
    ]


def _epoch(table: pa.Table) -> int:
    return int((table.schema.metadata or {})[_EPOCH])


def _key(table: pa.Table | None) -> list[str]:
    """The key's columns; none where nothing had been broadcast."""
    metadata = table.schema.metadata if table is not None else None
    names: list[str] = json.loads((metadata or {}).get(_KEY, b"[]"))
    return names


def _by_key(key: Sequence[str], table: pa.Table | None) -> dict[str, dict[str, Any]]:
    rows = table.to_pylist() if table is not None else []
    return {repr([row[name] for name in key]): row for row in rows}


def _decoded(content: bytes | None) -> pa.Table:
    assert content is not None
    return pa.ipc.open_stream(content).read_all()


class _Pins:
    """What the batches of a query have read of one state: one file each, in the query's checkpoint."""

    def __init__(self, frame: ClassicDataFrame, query: JavaObject, state: str) -> None:
        session = frame.sparkSession
        jvm = session._jvm
        assert jvm is not None
        self._path = jvm.org.apache.hadoop.fs.Path
        self._folder = f"{query.resolvedCheckpointRoot()}/keyhole/broadcast/{state}"
        configuration = session._jsparkSession.sessionState().newHadoopConf()
        files = jvm
        for part in _FILES.split("."):
            files = getattr(files, part)
        self._files = files.create(self._path(self._folder), configuration)
        self._files.mkdirs(self._path(self._folder))
        self._streams = jvm.org.apache.commons.io.IOUtils

    def read(self, batch_id: int) -> bytes | None:
        """None: it has read nothing yet."""
        if not self.has(batch_id):
            return None
        stream = self._files.open(self._path(f"{self._folder}/{batch_id}"))
        try:
            return bytes(self._streams.toByteArray(stream))
        finally:
            stream.close()

    def has(self, batch_id: int) -> bool:
        """It has read something."""
        return bool(self._files.exists(self._path(f"{self._folder}/{batch_id}")))

    def latest_before(self, batch_id: int) -> int | None:
        """The last batch before this one that has read something."""
        if self.has(batch_id - 1):
            return batch_id - 1
        names = [status.getPath().getName() for status in self._files.list(self._path(self._folder))]
        return max((int(name) for name in names if name.isdigit() and int(name) < batch_id), default=None)

    def write(self, batch_id: int, content: bytes) -> None:
        """Whole or not at all."""
        stream = self._files.createAtomic(self._path(f"{self._folder}/{batch_id}"), True)
        try:
            stream.write(bytearray(content))
            stream.close()
        except BaseException:
            stream.cancel()
            raise

    def forget(self, batch_id: int) -> None:
        """Drops what no batch can ask for any more. It needn't be there."""
        self._files.delete(self._path(f"{self._folder}/{batch_id}"))
