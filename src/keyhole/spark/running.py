"""What the processes of the jobs here share: Spark on one machine, a topic's records, and an orderly end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from keyhole import logs
from keyhole.config import JobConfig, TopicJobConfig, load
from keyhole.errors import KeyholeError
from keyhole.spark.session import local_session, local_settings

ROCKSDB: Mapping[str, str] = MappingProxyType(
    {
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        )
    }
)
"""For `session`: the state store that transformWithState needs."""

_LOOK_SECONDS = 0.2

_Config = TypeVar("_Config", bound=TopicJobConfig)


def configure(application: str, kind: type[_Config], environ: Mapping[str, str]) -> tuple[JobConfig, _Config]:
    """Both configurations of a job, and its logs set up. `application`: its name, where the environment has none.

    Raises:
        InvalidConfiguration: As keyhole.config.load.
    """
    job = load(JobConfig, environ, application=environ.get("KEYHOLE_JOB_APPLICATION", application))
    config = load(kind, environ)
    logs.configure(config.log_level)
    return job, config


def session(application: str, config: TopicJobConfig, more: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    """Starts Spark in this process.

    Args:
        more: Other settings of Spark's.
    """
    jars = [Path(jar) for jar in config.jars]
    return local_session(
        application, {**local_settings(jars, config.directory, partitions=config.shuffle_partitions), **more}
    )


def records(spark: SparkSession, bootstrap_servers: str, config: TopicJobConfig) -> DataFrame:
    """The topic's records, from its beginning: key, value, topic, partition, offset, timestamp."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", config.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", config.max_offsets_per_trigger)
        .load()
    )


def run_job(name: str, start: Callable[[Mapping[str, str]], StreamingQuery | Sequence[StreamingQuery]]) -> int:
    """The whole life of a job's process: until one of its queries fails or SIGTERM comes.

    Args:
        name: For a person.
        start: Starts Spark and the query, or the queries, from the environment.

    Returns:
        The process's exit code.

    Raises:
        StreamingQueryException: What ended a query. The others are stopped.
    """
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        started = start(os.environ)
    except KeyholeError as error:
        print(f"{name}: {error.message}", file=sys.stderr)  # noqa: T201 - for a person
        return 1
    # The handler itself can't stop the query: it may interrupt this thread in the middle of a call to the JVM.
    queries = [started] if isinstance(started, StreamingQuery) else started
    while all(query.isActive for query in queries) and not stopped.wait(_LOOK_SECONDS):
        pass
    ended = [query for query in queries if not query.isActive]
    for query in queries:
        query.stop()
    if not stopped.is_set():
        for query in ended:
            query.awaitTermination()  # raises what ended it
    return 0
