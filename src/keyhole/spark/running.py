"""What the processes of the jobs here share: Spark, here or on a cluster, a topic's records, and an orderly end."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, TypeVar
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from keyhole import logs
from keyhole.changelog.kafka.brokers import java_settings
from keyhole.changelog.kafka.record_topics import await_topic
from keyhole.config import CLUSTER, JobConfig, SourceConfig, TopicJobConfig, load
from keyhole.errors import InvalidConfiguration, KeyholeError
from keyhole.spark.session import FETCH_S3, FILE_CHECKPOINTS, cluster_settings, local_settings, start_session
from keyhole.spark.standing_by import GROUP_VARIABLE, await_lead
from keyhole.spark.write_path.real_time_query import RealTimeQuery

ROCKSDB: Mapping[str, str] = MappingProxyType(
    {
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        )
    }
)
"""For `session`: the state store that transformWithState needs."""

# With it begins Spark's account of the query's offsets and its whole plan, under which the reason is out of sight.
_PLAN = "\n=== Streaming Query ==="
# An error of ours that a task has raised: Spark prints it under the stacks of all that it has come through.
_OF_A_TASK = re.compile(r"^keyhole\.errors\.\w+: (.+)$", re.MULTILINE)
_LOOK_SECONDS = 0.2
_STOPPED = threading.Event()
"""SIGTERM has come, also before there is a query."""
_TOPIC_SECONDS = 60.0
# Kafka's default is 500. A task of Spark's asks for the topic's end once it has its records. The broker answers that
# when the fetch before it, by the same connection, has got records, or has waited so long for them.
_FETCH_WAIT_MS = 10

_Config = TypeVar("_Config", bound=TopicJobConfig)
_Query: TypeAlias = StreamingQuery | RealTimeQuery


def configure(
    application: str,
    kind: type[_Config],
    environ: Mapping[str, str],
    beside: Sequence[type[TopicJobConfig | SourceConfig]] = (),
) -> tuple[JobConfig, _Config]:
    """Both configurations of a job, and its logs set up.

    Args:
        application: Its name, where the environment has none.
        beside: As for keyhole.config.load.

    Raises:
        InvalidConfiguration: As keyhole.config.load.
    """
    known = (kind, *beside)
    job = load(JobConfig, environ, known, application=environ.get("KEYHOLE_JOB_APPLICATION", application))
    config = load(kind, environ, known)
    logs.configure(config.log_level)
    return job, config


def session(
    application: str, config: TopicJobConfig, more: Mapping[str, str] = MappingProxyType({}), *, cores: int = 2
) -> SparkSession:
    """Starts Spark in this process: on this machine alone, or as the driver of a cluster.

    Where KEYHOLE_JOB_DRIVER_GROUP is set, it returns once this driver leads.

    Args:
        more: Other settings of Spark's.
        cores: For tasks, where it is on this machine: how many run at once.
    """
    jars = [Path(jar) for jar in config.jars]
    if config.spark == CLUSTER:
        settings = cluster_settings(jars, partitions=config.shuffle_partitions)
        if config.checkpoint.startswith("file:"):
            settings.update(FILE_CHECKPOINTS)
    else:
        settings = local_settings(
            jars, config.directory, cores=cores, partitions=config.shuffle_partitions, checkpoint=config.checkpoint
        )
    started = start_session(application, {**settings, **more})
    if os.environ.get(GROUP_VARIABLE):
        job = load(JobConfig, os.environ, application=os.environ.get("KEYHOLE_JOB_APPLICATION", application))
        if not await_lead(started, job, given_up=_STOPPED.is_set):
            raise SystemExit(0)  # as after SIGTERM at any other time
    return started


def records(spark: SparkSession, bootstrap_servers: str, config: TopicJobConfig) -> DataFrame:
    """The topic's records, from its beginning: key, value, topic, partition, offset, timestamp.

    Raises:
        KafkaUnreachable: No broker answers.
        InvalidConfiguration: The topic doesn't exist, or the checkpoint can't be written to.
    """
    reader = _reader(spark, bootstrap_servers, config)
    reader = reader.option("maxOffsetsPerTrigger", config.max_offsets_per_trigger)
    return reader.option("kafka.fetch.max.wait.ms", _FETCH_WAIT_MS).load()


def real_time_records(spark: SparkSession, bootstrap_servers: str, config: TopicJobConfig) -> DataFrame:
    """The same for `queryable.realtime`, whose batches take all that comes. Raises as `records`."""
    return _reader(spark, bootstrap_servers, config).load()


def _reader(spark: SparkSession, bootstrap_servers: str, config: TopicJobConfig) -> DataStreamReader:
    await_topic(bootstrap_servers, config.topic, _TOPIC_SECONDS)
    require_writable(spark, config.checkpoint)
    return (
        spark.readStream.format("kafka")
        .options(**{f"kafka.{name}": value for name, value in java_settings(bootstrap_servers).items()})
        .option("subscribe", config.topic)
        .option("startingOffsets", "earliest")
    )


def require_writable(spark: SparkSession, checkpoint: str) -> None:
    """Makes the folder, and a file in it that goes again.

    Raises:
        InvalidConfiguration: It can't; the message says what the file system says.
    """
    jvm, java_session = spark._jvm, spark._jsparkSession
    assert jvm is not None
    folder = jvm.org.apache.hadoop.fs.Path(checkpoint)
    probe = jvm.org.apache.hadoop.fs.Path(folder, f".writable-{uuid.uuid4().hex}")
    try:
        files = folder.getFileSystem(java_session.sessionState().newHadoopConf())
        files.mkdirs(folder)
        files.create(probe).close()
        files.delete(probe, False)
    except Py4JJavaError as error:
        why = str(error.java_exception.toString())
        raise InvalidConfiguration(
            f"the checkpoint location {checkpoint} can't be written to ({why}): {advice(checkpoint, why)}",
            checkpoint=checkpoint,
        ) from error


def advice(checkpoint: str, why: str) -> str:
    """What to do where a checkpoint location can't be written to. `why`: what the file system says."""
    scheme = urlsplit(checkpoint).scheme
    if scheme in ("s3", "s3n"):
        return f"Hadoop's name for S3 is s3a, so the location is s3a{checkpoint.removeprefix(scheme)}"
    if scheme == "s3a" and "ClassNotFoundException" in why:
        return FETCH_S3
    if scheme == "s3a":
        return (
            "there must be such a bucket, and driver and executors must have its endpoint, region and credentials "
            "(docs/kubernetes.md, spark.hadoop.fs.s3a.*)"
        )
    return "mount a volume there that the driver's and the executors' user may write to, or correct the job's setting"


def run_job(name: str, start: Callable[[Mapping[str, str]], _Query | Sequence[_Query]]) -> int:
    """The whole life of a job's process: until one of its queries fails or SIGTERM comes.

    Args:
        name: For a person.
        start: Starts Spark and the query, or the queries, from the environment; of queryable.realtime, too.

    Returns:
        The process's exit code; 1 where a query has failed: the others are stopped, and what ended it is printed.
    """
    logs.tell_crashes()
    try:
        return _until_its_end(name, start)
    finally:
        # Whatever the end: executors of a cluster outlive a driver that only goes away.
        if (spark := SparkSession.getActiveSession()) is not None:
            # Before: a query that ends because Spark is gone says so at length, and hides what went wrong.
            for query in spark.streams.active:
                query.stop()
            spark.stop()


def _until_its_end(name: str, start: Callable[[Mapping[str, str]], _Query | Sequence[_Query]]) -> int:
    _STOPPED.clear()
    signal.signal(signal.SIGTERM, lambda *_: _STOPPED.set())
    try:
        started = start(os.environ)
    except KeyholeError as error:
        print(f"{name}: {error.message}", file=sys.stderr)  # noqa: T201 - for a person
        return 1
    # The handler itself can't stop the query: it may interrupt this thread in the middle of a call to the JVM.
    queries = started if isinstance(started, Sequence) else [started]
    while all(query.isActive for query in queries) and not _STOPPED.wait(_LOOK_SECONDS):
        pass
    ended = [query for query in queries if not query.isActive]
    for query in queries:
        query.stop()
    try:
        if not _STOPPED.is_set():
            for query in ended:
                query.awaitTermination()  # raises what ended it
    except StreamingQueryException as error:
        trace, mark, plan = traceback.format_exc().partition(_PLAN)
        # What ended it last: of a job's log people are shown the end.
        print(f"{mark}{plan}\n{trace}", file=sys.stderr)  # noqa: T201 - for a person
        said = str(error).partition(_PLAN)[0].rstrip()
        print(f"{name}: {said}", file=sys.stderr)  # noqa: T201 - for a person
        if "\n" in said and (ours := _OF_A_TASK.findall(said)):
            print(f"{name}: {ours[-1]}", file=sys.stderr)  # noqa: T201 - for a person
        return 1
    except KeyholeError as error:  # of a real-time query: Keyhole has stopped it
        print(f"{name}: {error.message}", file=sys.stderr)  # noqa: T201 - for a person
        return 1
    return 0
