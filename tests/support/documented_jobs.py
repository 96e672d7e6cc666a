"""Where what the pages show of jobs runs: Spark, real servers, and an application of a test's own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from keyhole import Client
from keyhole.spark import queryable
from keyhole.spark.running import ROCKSDB
from tests.support.micro_batches import MicroBatches, session_settings
from tests.support.streams import Rows, Service, file_stream

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
TUESDAY = MONDAY + timedelta(days=1)


def minute(number: int) -> str:
    return (MONDAY + timedelta(minutes=number)).isoformat()


@dataclass
class Scene:
    """Where a snippet runs: a job that is configured by its environment, and what a snippet takes for granted.

    Attributes:
        batches: What a snippet only makes is fed in these; their columns are all that snippets ask for.
    """

    spark: SparkSession
    service: Service
    client: Client
    batches: MicroBatches
    application: str
    directory: Path

    @property
    def proxy(self) -> str:
        return self.service.proxy

    def stream(self, schema: str, batches: Sequence[Rows], name: str = "source") -> DataFrame:
        return file_stream(self.spark, self.directory / name, schema, batches)

    def run(self, code: str, **names: Any) -> dict[str, Any]:
        """What it defines, `sink` among it where it ends by making one; its queries have come to their end."""
        for written, here in {
            '"rules-app/': f'"{self.application}/',
            "localhost:7400": self.proxy,
            '"/': f'"{self.directory}/',
            "\nqueryable.": "\nsink = queryable.",
            ".foreachBatch(": f'.option("checkpointLocation", "{self.directory}/{uuid.uuid4().hex}").foreachBatch(',
        }.items():
            code = f"\n{code}".replace(written, here).removeprefix("\n")
        defined = {"__name__": "__main__", "queryable": queryable, "F": F, "spark": self.spark, **names}
        others = {query.id for query in self.spark.streams.active}
        with self._environment():
            exec(compile(code, "page", "exec"), defined)
            for query in self.spark.streams.active:
                if query.id not in others:
                    try:
                        query.processAllAvailable()
                    finally:
                        query.stop()
        return defined

    @contextmanager
    def _environment(self) -> Iterator[None]:
        config = self.service.config(self.application)
        settings = {
            "spark.sql.shuffle.partitions": "2",
            **ROCKSDB,
        }
        with pytest.MonkeyPatch.context() as patch, session_settings(self.spark, settings):
            patch.setenv("KEYHOLE_JOB_APPLICATION", self.application)
            patch.setenv("KEYHOLE_JOB_SERVERS", ",".join(config.servers))
            patch.setenv("KEYHOLE_JOB_BOOTSTRAP_SERVERS", config.bootstrap_servers)
            patch.setenv("KEYHOLE_JOB_EPOCH_DEADLINE_SECONDS", str(config.epoch_deadline_seconds))
            yield

    def feed(self, sink: Callable[[DataFrame, int], None], *batches: Rows) -> None:
        """In append mode."""
        columns = list(batches[0][0])
        for rows in batches:
            self.batches.run(rows, lambda data, batch_id: sink(data.select(*columns), batch_id))

    def rules(self, schema: str, rule: tuple[object, ...]) -> queryable.BroadcastReader:
        """One, broadcast."""
        config = self.service.config(self.application)
        sink = queryable.broadcast("rules", key="rule", query="rules", config=config)
        assert sink.bootstrap(self.spark.createDataFrame([rule], schema))
        return queryable.BroadcastReader(f"{self.application}/rules", proxy=self.proxy)

    def values(self, state: str, keys: Sequence[Any]) -> list[Any]:
        return [answer.value for answer in self.client.get_many(self.application, state, keys)]

    def entries(self, state: str, key: Any) -> dict[Any, Any]:
        return {entry.map_key: entry.value for entry in self.client.scan(self.application, state, key)}
