"""One streaming query whose micro-batches tests run, one after the other: each with its own rows and function.

For what a test does in `foreachBatch` itself, several times or with an error that isn't to end the query. What only
looks at what a query has left is a scenario (tests.support.scenario).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from pyspark.errors import StreamingQueryException

from tests.support.streams import Rows, file_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

InBatch = Callable[["DataFrame", int], Any]


def _as_it_is(data: DataFrame) -> DataFrame:
    return data


def _nothing(data: DataFrame, batch_id: int) -> None:
    pass


class MicroBatches:
    """Use as a context manager, at whose end the query ends.

    Each call blocks until Spark has run its micro-batch. Python calls the function on the thread of Spark's callback.

    Args:
        directory: For the source's files, and the folder `checkpoint`.
        plan: What the query makes of its source.
        name: The query's.
        partitions: `spark.sql.shuffle.partitions`.
        settings: Others of the session's with which it starts.
    """

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        schema: str,
        plan: Callable[[DataFrame], DataFrame] = _as_it_is,
        *,
        mode: str = "append",
        name: str | None = None,
        partitions: int = 2,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._spark = spark
        self.checkpoint = directory / "checkpoint"
        self._schema = schema
        self._plan = plan
        self._mode = mode
        self._name = name
        self._settings = {"spark.sql.shuffle.partitions": str(partitions), **settings}
        self._source = directory / "source"
        self._source.mkdir()
        self._count = 0
        self._query: StreamingQuery | None = None
        self._failed = False
        self._waiting: list[InBatch] = []
        self._made: Any = None

    def run(self, rows: Rows, function: InBatch) -> Any:
        """What the function returns for a micro-batch of the rows. What it raises is raised here: the query goes on."""
        raised: list[BaseException] = []

        def kept(data: DataFrame, batch_id: int) -> Any:
            try:
                return function(data, batch_id)
            except BaseException as error:  # noqa: BLE001 - raised below, an assertion of pytest's own too
                raised.append(error)
                return None

        made = self.fail(rows, kept)
        for error in raised:
            raise error
        return made

    def fail(self, rows: Rows, function: InBatch) -> Any:
        """The same, but what the function raises ends the query, whose error is raised here."""
        # Elsewhere first: the query, which is running, would take half of a file for the whole.
        written = self._source / f".{self._count:03}"
        written.write_text("\n".join(json.dumps(row) for row in rows))
        os.utime(written, (1_600_000_000 + self._count,) * 2)  # Spark takes the oldest first
        written.rename(self._source / f"{self._count:03}.json")
        self._count += 1
        # The batch that the query has failed in comes again first.
        return self._run([_nothing, function] if self._failed else [function])

    def again(self, function: InBatch) -> Any:
        """Starts a query that has failed again, which runs the batch again that it failed in."""
        assert self._failed
        return self._run([function])

    def stop(self) -> None:
        """Ends the query; the next call starts it again, from its checkpoint."""
        if self._query is not None:
            self._query.stop()
            self._query = None

    def _run(self, functions: list[InBatch]) -> Any:
        self._waiting, self._failed = functions, False
        if self._query is None:
            self._query = self._started()
        try:
            self._query.processAllAvailable()
        except StreamingQueryException:
            self._failed = True
            self.stop()
            raise
        return self._made

    def _started(self) -> StreamingQuery:
        data = file_stream(self._spark, self._source, self._schema, [])
        with session_settings(self._spark, self._settings):
            writer = self._plan(data).writeStream.outputMode(self._mode)
            writer = writer.option("checkpointLocation", str(self.checkpoint))
            if self._name is not None:
                writer = writer.queryName(self._name)
            return writer.foreachBatch(self._next).start()

    def _next(self, data: DataFrame, batch_id: int) -> None:
        if self._waiting:  # else it is one without rows
            self._made = self._waiting.pop(0)(data, batch_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


@contextlib.contextmanager
def session_settings(spark: SparkSession, given: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session, which a query takes when it starts; as before at the end."""
    before = {name: spark.conf.get(name, None) for name in given}
    for name, value in given.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)
