"""Broadcast states as a job reads them: whole, and the same again when a batch is run again."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame
from pyspark.sql import types as spark
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from keyhole.client import Client
from keyhole.errors import InvalidConfiguration
from keyhole.spark.batch import classic, current
from keyhole.spark.lookup import as_arrow, spark_type, value_schema
from keyhole.types import Entries, StateDescriptor, StateKind

_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager"
_EPOCH = b"keyhole_epoch"
# As many batches as Spark keeps the logs of, by default.
_KEPT_BATCHES = 100


class BroadcastReader:
    """Gives each batch of a query the content of a broadcast state, and always the same to the same batch.

        thresholds = BroadcastReader("rules-app/thresholds", proxy="localhost:7400")

        def process(readings, batch_id):
            rules = thresholds.read(readings, batch_id)
            sink(alerts(readings, rules), batch_id)

    What a batch reads is written to its query's checkpoint before the batch's first stage, as Spark writes the offsets
    that it reads from its sources: a batch that is run again, by whichever driver, reads that. Read-only.

    Args:
        state: APPLICATION/STATE, of kind broadcast.
        proxy: host:port of a client proxy.
        timeout: Seconds that a read may take.
    """

    def __init__(self, state: str, *, proxy: str, timeout: float = 30.0) -> None:
        application, slash, name = state.partition("/")
        if not (application and slash and name):
            raise InvalidConfiguration(f"{state!r} names no state; write APPLICATION/STATE")
        self._application = application
        self._state = name
        self._proxy = proxy
        self._timeout = timeout

    def read(self, data: DataFrame, batch_id: int) -> DataFrame:
        """All entries, one row each: the key's columns, then the value's. On the thread that Spark calls.

        Args:
            data, batch_id: As foreachBatch gave them.

        Raises:
            UnknownApplication, UnknownState: Nothing has been broadcast yet: the batch can't be run.
            InvalidConfiguration: The state is of another kind; or called outside of foreachBatch.
            KeyholeError: The state can't be read now.
        """
        return self._frame(classic(data), self._pinned(classic(data), batch_id))

    def epoch(self, data: DataFrame, batch_id: int) -> int:
        """The epoch of the broadcast state that the batch reads. As `read`."""
        metadata = self._pinned(classic(data), batch_id).schema.metadata or {}
        return int(metadata[_EPOCH])

    def _pinned(self, frame: ClassicDataFrame, batch_id: int) -> pa.Table:
        pins = _Pins(frame, current(frame, batch_id).query, f"{self._application}.{self._state}")
        content = pins.read(batch_id)
        if content is None:
            content = _encoded(self._fetched())
            pins.write(batch_id, content)
            pins.forget(batch_id - _KEPT_BATCHES)
        return pa.ipc.open_stream(content).read_all()

    def _fetched(self) -> pa.Table:
        with Client(self._proxy, timeout=self._timeout) as client:
            descriptor = client.describe_state(self._application, self._state)
            if descriptor.kind is not StateKind.BROADCAST:
                raise InvalidConfiguration(
                    f"state {self._application}/{self._state} is of kind {descriptor.kind}; only a broadcast state can "
                    "be read whole. Make it one with queryable.broadcast, or look its keys up with queryable.lookup"
                )
            return _table(descriptor, client.scan(self._application, self._state, ()))

    @staticmethod
    def _frame(frame: ClassicDataFrame, content: pa.Table) -> DataFrame:
        return frame.sparkSession.createDataFrame(content.replace_schema_metadata(None))


def _table(descriptor: StateDescriptor, entries: Entries) -> pa.Table:
    key = [spark.StructField(column.name, spark_type(column.type.value)) for column in descriptor.key]
    schema = to_arrow_schema(spark.StructType([*key, *value_schema(descriptor).fields]), timezone="UTC")
    single = len(descriptor.key) == 1
    keys = [(entry.map_key,) if single else entry.map_key for entry in entries]
    names = [field.name for field in key]
    # The value by its names: its fields may have changed since it was described.
    rows = [dict(zip(names, of, strict=True)) | as_arrow(entry.value) for of, entry in zip(keys, entries, strict=True)]
    return pa.Table.from_pylist(rows, schema.with_metadata({_EPOCH: str(entries.epoch).encode()}))


def _encoded(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


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

    def forget(self, before: int) -> None:
        """Drops what no batch can ask for any more."""
        found: Sequence[JavaObject] = self._files.list(self._path(self._folder))
        for status in found:
            name = status.getPath().getName()
            if name.isdigit() and int(name) < before:
                self._files.delete(status.getPath())
