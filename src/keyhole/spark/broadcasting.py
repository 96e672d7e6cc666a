"""Broadcast states as a job reads them: whole, and the same again when a batch is run again."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame
from pyspark.sql import types as spark
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from keyhole.arrow import ipc_stream
from keyhole.client import Client
from keyhole.errors import InvalidConfiguration, UnknownApplication, UnknownState
from keyhole.spark.batch import classic, current
from keyhole.spark.lookup import as_arrow, spark_type, value_schema
from keyhole.spark.schema import struct
from keyhole.state_path import state_path
from keyhole.types import Entries, StateDescriptor, StateKind

_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager"
_EPOCH = b"keyhole_epoch"
# Of so many batches Spark keeps the logs.
_KEPT_BATCHES = "spark.sql.streaming.minBatchesToRetain"


class BroadcastReader:
    """Gives each batch of a query the content of a broadcast state, and always the same to the same batch.

        thresholds = BroadcastReader("rules-app/thresholds", proxy="localhost:7400")

        def process(readings, batch_id):
            sink(alerts(readings, thresholds.read(readings)), batch_id)

    What a batch reads is written to its query's checkpoint before the batch's first stage, as Spark writes the offsets
    that it reads from its sources: a batch that is run again, by whichever driver, reads that. Read-only.

    Args:
        state: APPLICATION/STATE, of kind broadcast.
        proxy: host:port of a client proxy.
        timeout: Seconds that a read may take.
        or_empty: The columns of the key and of the value, as Spark writes a schema: a batch that runs before anything
            has been broadcast then reads no entries of these columns. Default: it can't be run.
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
            InvalidConfiguration: The state is of another kind; or called outside of foreachBatch.
            KeyholeError: The state can't be read now.
        """
        content = self._pinned(classic(data))
        return classic(data).sparkSession.createDataFrame(content.replace_schema_metadata(None))

    def epoch(self, data: DataFrame) -> int:
        """The epoch of the broadcast state that the batch reads; 0: nothing had been broadcast. As `read`."""
        metadata = self._pinned(classic(data)).schema.metadata or {}
        return int(metadata[_EPOCH])

    def _pinned(self, frame: ClassicDataFrame) -> pa.Table:
        batch = current(frame)
        pins = _Pins(frame, batch.query, f"{self._application}.{self._state}")
        content = pins.read(batch.number)
        if content is None:
            content = ipc_stream(self._fetched())
            pins.forget(batch.number - int(frame.sparkSession.conf.get(_KEPT_BATCHES) or 0))
            pins.write(batch.number, content)
        return pa.ipc.open_stream(content).read_all()

    def _fetched(self) -> pa.Table:
        with Client(self._proxy, timeout=self._timeout) as client:
            try:
                descriptor = client.describe_state(self._application, self._state)
            except (UnknownApplication, UnknownState):
                if not self._or_empty:
                    raise
                return _table_of(struct("or_empty", self._or_empty), [], 0)
            if descriptor.kind is not StateKind.BROADCAST:
                raise InvalidConfiguration(
                    f"state {self._application}/{self._state} is of kind {descriptor.kind}; only a broadcast state can "
                    "be read whole. Make it one with queryable.broadcast, or look its keys up with queryable.lookup"
                )
            return _table(descriptor, client.scan(self._application, self._state, ()))


def _table(descriptor: StateDescriptor, entries: Entries) -> pa.Table:
    key = [spark.StructField(column.name, spark_type(column.type.value)) for column in descriptor.key]
    single = len(descriptor.key) == 1
    keys = [(entry.map_key,) if single else entry.map_key for entry in entries]
    names = [field.name for field in key]
    # The value by its names: its fields may have changed since it was described.
    rows = [dict(zip(names, of, strict=True)) | as_arrow(entry.value) for of, entry in zip(keys, entries, strict=True)]
    return _table_of(spark.StructType([*key, *value_schema(descriptor).fields]), rows, entries.epoch)


def _table_of(schema: StructType, rows: list[dict[str, Any]], epoch: int) -> pa.Table:
    columns = to_arrow_schema(schema, timezone="UTC")
    return pa.Table.from_pylist(rows, columns.with_metadata({_EPOCH: str(epoch).encode()}))


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
        path = self._path(f"{self._folder}/{batch_id}")
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return bytes(self._streams.toByteArray(stream))
        finally:
            stream.close()

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
