"""A Spark session for one machine, which the embedded default and the tests run on, or for a cluster."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from keyhole.class_archive import archive_path, reading
from keyhole.config import JobConfig
from keyhole.errors import InvalidConfiguration
from keyhole.model.names import checked_name
from keyhole.spark.driver.data_frames import refuse_connect
from keyhole.spark.driver.jvm import compiler_put_back_early, put_compiler_back, remember_classes
from keyhole.spark.stacks import STACKS, SUBMIT_OPTIONS, submit_options
from keyhole.spark.standing_by import await_lead, end_at_sigterm
from keyhole.temporary import temporary_directory

# Its threads are all there from the beginning, for put_compiler_back.
_QUICK = ("-XX:-UseDynamicNumberOfCompilerThreads",)

SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Is set where spark-submit has started a JVM for the process, and says where."""
SETTINGS_FOLDER = "SPARK_CONF_DIR"
"""Where Spark reads its defaults; the chart puts a cluster's there."""
_KAFKA = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
CHECKPOINT_LOCATION = "spark.sql.streaming.checkpointLocation"
"""Below it queries have a folder each that say no location of their own."""
_OBJECT_STORES = (
    "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "org.apache.hadoop.fs.gs.GoogleHadoopFileSystem",
    "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",
    "org.apache.hadoop.fs.azure.NativeAzureFileSystem",
)

_CHECKPOINTING = "org.apache.spark.sql.execution.streaming.checkpointing"
_CLOUD = "org.apache.spark.internal.io.cloud"
_S3_CONNECTOR = "hadoop-aws-"
FILE_CHECKPOINTS: Mapping[str, str] = MappingProxyType(
    {"spark.sql.streaming.checkpointFileManagerClass": f"{_CHECKPOINTING}.FileSystemBasedCheckpointFileManager"}
)
"""For checkpoints in a local or mounted directory, where Spark's default starts five processes for each file that it
writes, thirty in a batch of four partitions. Layout, checksums and the rename at the end of each file are the same, so
that either reads what the other has written."""
S3_CHECKPOINTS: Mapping[str, str] = MappingProxyType(
    {"spark.sql.streaming.checkpointFileManagerClass": f"{_CLOUD}.AbortableStreamBasedCheckpointFileManager"}
)
"""For checkpoints in an object store, at s3a://, with the jars for it: each file is put there when it is whole. Spark's
default puts it there under another name, copies it and deletes that: 438 requests in place of 268 for two batches. A
session with it has no checkpoints elsewhere."""

POLLING: Mapping[str, str] = MappingProxyType({"spark.sql.streaming.pollingDelay": "50ms"})
"""A query without new data asks its source 20 times a second; a hundred times by default, for half of a core."""

LOOPBACK: Mapping[str, str] = MappingProxyType(
    {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
)
"""Only this machine may connect; and a host name that doesn't resolve does not stop Spark."""

FETCH_S3 = (
    "fetch the pinned ones (python -m keyhole.local.fetch_jars spark-s3 FOLDER, or keyhole.local.jars.fetch), and give "
    "them beside the Kafka connector's (local_settings(jars=...), KEYHOLE_<job>_JARS; in a container on Spark's "
    "class path)"
)
"""What to do where Spark has no file system for s3a://."""


def local_settings(
    jars: Sequence[Path],
    directory: Path,
    *,
    cores: int = 2,
    partitions: int = 4,
    quick: bool = True,
    checkpoint: str = "",
) -> dict[str, str]:
    """Spark's settings for one machine.

    Args:
        jars: The connectors' jars (keyhole.local.jars), by path: `spark.jars.packages` can't leave one out.
        directory: For all that Spark writes beside checkpoints (shuffle files, warehouse, temporary files).
        partitions: `spark.sql.shuffle.partitions`. A stateful query keeps the number of its checkpoint.
        quick: The JVM's optimising compiler comes behind all else: on two cores it takes as much processor time as the
            rest until a query has run for some minutes. False: it takes its part.
        checkpoint: The location that the session's queries have theirs below; only its scheme counts. Empty: on this
            machine.

    Raises:
        InvalidConfiguration: The checkpoint is in an object store, and the jars don't reach there.
    """
    writing = checkpoint_writing(checkpoint, jars)
    archive = archive_of_spark(os.environ)
    classes = reading(archive) if archive is not None else []
    return {
        **_of_every_job(jars, partitions),
        "spark.master": f"local[{cores}]",
        **LOOPBACK,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.local.dir": str(directory),
        "spark.driver.extraJavaOptions": java_options(directory, [*classes, *(_QUICK if quick else ())]),
        **writing,
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }


def checkpoint_writing(checkpoint: str, jars: Sequence[Path]) -> Mapping[str, str]:
    """How a session on this machine writes checkpoints at a location. Raises as `local_settings`."""
    scheme = urlsplit(checkpoint).scheme
    if scheme in ("", "file"):
        return FILE_CHECKPOINTS
    if scheme != "s3a":  # by Spark's default; what it can't reach, it says
        return {}
    if not any(jar.name.startswith(_S3_CONNECTOR) for jar in jars):
        raise InvalidConfiguration(
            f"the checkpoint {checkpoint} is in an object store, and there is no {_S3_CONNECTOR}*.jar among Spark's "
            f"jars ({len(jars)} of them): {FETCH_S3}",
            checkpoint=checkpoint,
        )
    return S3_CHECKPOINTS


def java_options(directory: Path, more: Sequence[str]) -> str:
    """The options of the driver's JVM, as Spark takes them."""
    # A JVM that is killed leaves its temporary files behind, where they belong to nobody.
    options = [f"-Djava.io.tmpdir={directory}", "-XX:-UsePerfData", STACKS, *more]
    return " ".join(f'"{option}"' for option in options)


def archive_of_spark(environ: Mapping[str, str]) -> Path | None:
    """The archive of the classes of the Spark that a session here runs on (keyhole.class_archive); None: it is nowhere
    to be found, and its session will say so.
    """
    java = Path(environ["JAVA_HOME"], "bin", "java") if environ.get("JAVA_HOME") else shutil.which("java")
    jars = list(Path(_find_spark_home(), "jars").glob("*.jar"))
    try:
        return archive_path(environ, "spark", Path(java), jars) if java is not None else None
    except FileNotFoundError:
        return None


def cluster_settings(jars: Sequence[Path], *, partitions: int | None) -> dict[str, str]:
    """Spark's settings for the driver of a cluster: what is no job's own is in spark-defaults.conf of SPARK_CONF_DIR.

    Args:
        jars: By path, for the executors to fetch; none where their image has them on its class path.
        partitions: As for `local_settings`. None: Spark's own.
    """
    return _of_every_job(jars, partitions)


def _of_every_job(jars: Sequence[Path], partitions: int | None) -> dict[str, str]:
    settings = {"spark.sql.session.timeZone": "UTC", "spark.python.daemon.module": "keyhole.spark.daemon"}
    if partitions is not None:
        settings["spark.sql.shuffle.partitions"] = str(partitions)
    if jars:
        settings["spark.jars"] = ",".join(str(jar) for jar in jars)
    return settings


def session(
    application: str,
    settings: Mapping[str, str] = MappingProxyType({}),
    *,
    kafka: bool = False,
    cores: int = 2,
    partitions: int = 2,
) -> SparkSession:
    """The session of a job of one's own: on this machine, or on a cluster. That is where spark-submit has started the
    job, or where spark-defaults.conf in SPARK_CONF_DIR names a master, as the chart's does.

        spark = session("shop")

    On this machine what Spark writes beside checkpoints is in a temporary folder, which goes with the process. Jars are
    those that Spark is given in its own ways: `spark-submit --jars`, or `keyhole dev`. Where KEYHOLE_JOB_DRIVER_GROUP
    is set, it returns once this driver leads (keyhole.spark.standing_by). Under `spark-submit --master local[2]` it has
    FILE_CHECKPOINTS, too, where checkpoints can only be in directories: see `has_checkpoints_in_files`.

    Args:
        application: Names the session, and the application whose states the job feeds where KEYHOLE_JOB_APPLICATION
            names no other one.
        settings: Of Spark, beside those of `local_settings` and before them.
        kafka: The job reads or writes Kafka: what lacks for it is said here.
        cores: For tasks, where it is on this machine.
        partitions: `spark.sql.shuffle.partitions`. A stateful query keeps the number of its checkpoint.

    Raises:
        InvalidConfiguration: The name can't be an application's; or Spark has no connector for Kafka.
        Unsupported: The process is set up for Spark Connect.
    """
    checked_name("the application's name", application, "choose another one")
    refuse_connect(settings)
    os.environ.setdefault(f"{JobConfig.PREFIX}APPLICATION", application)
    started = _started(application, settings, cores=cores, partitions=partitions)
    if kafka and not has_kafka(started):
        raise InvalidConfiguration(
            'Spark has no connector for Kafka: start the job by spark-submit --jars "$(keyhole jars)", or by '
            "`keyhole dev`, which gives it one; a session that is open already keeps what it has"
        )
    end_at_sigterm()
    await_lead(started)
    return started


def has_kafka(session: SparkSession) -> bool:
    """Whether its driver has Spark's connector for Kafka."""
    return _has(session, _KAFKA)


def _has(session: SparkSession, name: str) -> bool:
    """Whether its driver's JVM has this class."""
    jvm = session._jvm
    assert jvm is not None
    return bool(jvm.org.apache.spark.util.Utils.classIsLoadable(name))


def _started(application: str, settings: Mapping[str, str], *, cores: int, partitions: int) -> SparkSession:
    if SUBMITTED in os.environ or has_master(os.environ):
        started = start_session(application, {**cluster_settings((), partitions=partitions), **settings})
        if has_checkpoints_in_files(started):
            for name, value in FILE_CHECKPOINTS.items():
                started.conf.set(name, value)
        return started
    # At the end Spark's JVM may still write into it: what is left, as after a kill, goes with the next one's start.
    until_the_end = contextlib.ExitStack()
    folder = until_the_end.enter_context(temporary_directory(prefix="keyhole-spark-"))
    atexit.register(until_the_end.close)
    return start_session(application, {**local_settings((), folder, cores=cores, partitions=partitions), **settings})


def has_checkpoints_in_files(session: SparkSession) -> bool:
    """Whether all says that the checkpoints of a session are in directories of this machine, so that FILE_CHECKPOINTS
    are safe: elsewhere a file that is written again would stay as it was. Only a query says where its own is.

    All of Spark is on this machine, and a path without a scheme is there as well. Neither
    `spark.sql.streaming.checkpointLocation` nor a connector of an object store leads elsewhere, and nobody has chosen
    how checkpoints are written.
    """
    context, conf = session.sparkContext, session.conf
    if not re.fullmatch(r"local(\[.*\])?", str(context.master)) or any(
        conf.get(name, None) for name in FILE_CHECKPOINTS
    ):
        return False
    default = context._jsc.hadoopConfiguration().get("fs.defaultFS")
    places = urlsplit(str(default)).scheme, urlsplit(conf.get(CHECKPOINT_LOCATION, None) or "").scheme
    return all(scheme in ("", "file") for scheme in places) and not any(_has(session, name) for name in _OBJECT_STORES)


def has_master(environ: Mapping[str, str]) -> bool:
    """Whether spark-defaults.conf in SPARK_CONF_DIR says where Spark runs.

    Raises:
        InvalidConfiguration: The file can't be read.
    """
    return "spark.master" in spark_defaults(environ)


def spark_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of spark-defaults.conf in SPARK_CONF_DIR; none where there is no such file.

    Raises:
        InvalidConfiguration: The file can't be read.
    """
    if not (folder := environ.get(SETTINGS_FOLDER)) or not (defaults := Path(folder, "spark-defaults.conf")).exists():
        return {}
    try:
        lines = defaults.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"{SETTINGS_FOLDER} is {folder}, and {defaults} can't be read: {error}") from error
    settings = (re.match(r"\s*(spark\.[^\s=:]+)[\s=:]+(.*?)\s*$", line) for line in lines)
    return {found[1]: found[2] for found in settings if found}


def start_session(application: str, settings: Mapping[str, str]) -> SparkSession:
    """Starts Spark in this process (and its JVM beside it), or returns the session that it already has.

    Python workers run this very interpreter, which has Keyhole: Spark's default is any `python3` on PATH. The JVM has
    deep stacks, also on a cluster. It has POLLING where nobody has said otherwise.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ[SUBMIT_OPTIONS] = submit_options(os.environ)
    if "spark.local.dir" in settings:
        Path(settings["spark.local.dir"]).mkdir(parents=True, exist_ok=True)
    builder = SparkSession.builder.appName(application)
    for name, value in settings.items():
        builder = builder.config(name, value)
    quick = _QUICK[0] in settings.get("spark.driver.extraJavaOptions", "")
    with compiler_put_back_early() if quick else contextlib.nullcontext():
        session = builder.getOrCreate()
    remember_classes(session)
    for name, value in POLLING.items():
        # Spark's own ways of saying it come first: a submission, spark-defaults.conf.
        if session.conf.get(name, None) is None:
            session.conf.set(name, value)
    if quick:
        put_compiler_back(session)
    return session
