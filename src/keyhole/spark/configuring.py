"""`queryable.configure`: the settings of keyhole.spark.session for a session that somebody builds without it.

given to the builder, to spark-submit, or in spark-defaults.conf    stays
else, of every job                                                  Python's workers, the time zone, how often an
                                                                    idle query looks for new data
else, where all of Spark is on this machine                         also partitions, its address, the JVM's archive
where a checkpoint's location says that it is in files, or at s3a   how it is written
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from keyhole.class_archive import reading
from keyhole.errors import InvalidConfiguration
from keyhole.spark.driver.data_frames import refuse_connect
from keyhole.spark.session import (
    CHECKPOINT_LOCATION,
    FILE_CHECKPOINTS,
    LOOPBACK,
    POLLING,
    S3_CHECKPOINTS,
    SETTINGS_FOLDER,
    SUBMITTED,
    archive_of_spark,
    checkpoint_writing,
    cluster_settings,
    spark_defaults,
)
from keyhole.spark.stacks import SUBMIT_OPTIONS, submit_options

_MASTER, _JARS, _PACKAGES, _JAVA = "spark.master", "spark.jars", "spark.jars.packages", "spark.driver.extraJavaOptions"
_FILE_SYSTEM = "spark.hadoop.fs.defaultFS"
_PYTHON = ("spark.pyspark.python", "spark.pyspark.driver.python")
_PYTHONS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
_KAFKA, _S3, _S3_WRITER = "spark-sql-kafka-0-10", "hadoop-aws", "spark-hadoop-cloud"
# What a submission says by words of its own, as a setting.
_WORDS = {"--master": _MASTER, "--jars": _JARS, "--packages": _PACKAGES, "--remote": "spark.remote"}
(_WRITER,) = FILE_CHECKPOINTS


def configure(
    builder: SparkSession.Builder,
    *,
    checkpoint: str = "",
    kafka: bool = False,
    jars: Sequence[Path | str] = (),
    partitions: int | None = None,
) -> SparkSession.Builder:
    """Gives a builder of Spark's what makes queryable jobs quick, and their rows the same on each machine.

        builder = SparkSession.builder.master("local[2]")
        spark = queryable.configure(builder, checkpoint="file:/checkpoints").getOrCreate()

    What the builder, the submission or spark-defaults.conf says stays as it is; so does what is set afterwards. So say
    master and jars before. docs/spark-reference.md has each setting with its effect.

    Whether checkpoints are files nobody knows before a query says where its own is, and by then the session's setting
    is in force: a path alone may lead to HDFS by Hadoop's own configuration. So that setting needs `checkpoint`, or
    `spark.sql.streaming.checkpointLocation` on the builder; without either, Spark writes checkpoints its own way.

    Args:
        builder: Of the classic Spark; no session runs in the process yet.
        checkpoint: The location that all of the session's queries have theirs below; only its scheme counts. `file:` is
            a directory, on a cluster a mounted one. A path without a scheme is one where all of Spark is on this
            machine and nothing names another file system.
        kafka: The job reads or writes Kafka: where its connector can't come from anywhere, that is said here.
        jars: The connectors' jars, by path, as `keyhole jars` prints them.
        partitions: `spark.sql.shuffle.partitions`. None: as many as there are cores, where all of Spark is on this
            machine; else Spark's own. A stateful query keeps the number of its checkpoint.

    Returns:
        The builder.

    Raises:
        InvalidConfiguration: It is no builder; a session runs; jars are given twice, or too late; a connector is
            nowhere; or checkpoints are to be written in a way that is not safe where they are.
        Unsupported: The session would be one of Spark Connect.
    """
    if not isinstance(builder, SparkSession.Builder):
        raise InvalidConfiguration(
            f"configure takes a builder, SparkSession.builder, before its getOrCreate(); it was given a "
            f"{type(builder).__name__}"
        )
    if SparkContext._active_spark_context is not None:
        raise InvalidConfiguration(
            "a Spark session runs in this process already and keeps what it began with: call configure before the "
            "first getOrCreate(), or stop that session"
        )
    if partitions is not None and partitions < 1:
        raise InvalidConfiguration(f"partitions is {partitions}: it is 1 or more")
    refuse_connect(builder._options)
    submitted = SUBMITTED in os.environ
    given = _given(builder._options, os.environ, submitted=submitted)
    refuse_connect(given)
    paths = _checked_jars(jars, given, submitted=submitted)
    if kafka and not _may_have(_KAFKA, paths, given, submitted=submitted):
        raise InvalidConfiguration(
            "Spark would have no connector for Kafka: give configure its jars (`keyhole jars` prints them), or start "
            'the job by spark-submit --jars "$(keyhole jars)"'
        )
    master = given.get(_MASTER) or os.environ.get("MASTER") or ("" if submitted else "local[*]")
    cores = _cores(master)
    checkpoint = checkpoint or given.get(CHECKPOINT_LOCATION, "")
    settings = {
        **cluster_settings(paths if jars else (), partitions=partitions or cores),
        **POLLING,
        **(_of_this_machine(given, submitted=submitted) if cores else {}),
        **_writing(checkpoint, paths, given, submitted=submitted, here=cores is not None),
    }
    for name, value in settings.items():
        if name not in given:
            builder.config(name, value)
    os.environ[SUBMIT_OPTIONS] = submit_options(os.environ)
    if cores and not any(given.get(name) for name in _PYTHON):
        for name in _PYTHONS:
            os.environ.setdefault(name, sys.executable)
    return builder


def _given(options: Mapping[str, str], environ: Mapping[str, str], *, submitted: bool) -> dict[str, str]:
    """All settings that somebody has chosen: the builder's before those of the submission, and these before defaults.

    Args:
        submitted: spark-submit has read all but the builder's.
    """
    if submitted:
        return {**_of_the_submission(), **options}
    words = shlex.split(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    said = [(_WORDS[word], value) for word, value in pairwise(words) if word in _WORDS]
    said += [
        (name, value) for name, _, value in (pair.partition("=") for word, pair in pairwise(words) if word == "--conf")
    ]
    folder = str(Path(_find_spark_home(), "conf"))
    return {**spark_defaults({SETTINGS_FOLDER: folder, **environ}), **dict(said), **options}


def _of_the_submission() -> dict[str, str]:
    """What spark-submit was given, as the JVM knows it that it has started for this process."""
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _checked_jars(jars: Sequence[Path | str], given: Mapping[str, str], *, submitted: bool) -> list[Path]:
    """The jars that Spark will have, as far as a list says them."""
    listed = [Path(jar) for jar in given.get(_JARS, "").split(",") if jar]
    if not jars:
        return listed
    if submitted:
        raise InvalidConfiguration("Spark's JVM runs already: give the jars to spark-submit by --jars")
    if listed:
        raise InvalidConfiguration(f"jars are given twice, to configure and by {_JARS}: leave one of them out")
    if missing := [str(jar) for jar in jars if not Path(jar).is_file()]:
        raise InvalidConfiguration(
            f"there is no jar {missing[0]}: `keyhole jars` fetches them and prints where they are"
        )
    return [Path(jar) for jar in jars]


def _may_have(connector: str, jars: Sequence[Path], given: Mapping[str, str], *, submitted: bool) -> bool:
    """Whether a connector is there, or may come in a way that can't be looked into before Spark starts."""
    if submitted or connector in given.get(_PACKAGES, "") or "SPARK_DIST_CLASSPATH" in os.environ:
        return True
    if given.get("spark.driver.extraClassPath"):
        return True
    return any(jar.name.startswith(connector) for jar in (*jars, *Path(_find_spark_home(), "jars").glob("*.jar")))


def _cores(master: str) -> int | None:
    """How many cores it has for tasks where all of Spark is on this machine, and in one process; else None."""
    if not (local := re.fullmatch(r"local(?:\[\s*(\d+|\*)\s*(?:,.*)?\])?", master)):
        return None
    return (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)


def _of_this_machine(given: Mapping[str, str], *, submitted: bool) -> dict[str, str]:
    settings: dict[str, str] = {}
    if not any(name in given for name in LOOPBACK):  # one of them alone may not fit the other
        settings.update(LOOPBACK)
    begun = submitted or SparkContext._gateway is not None  # the JVM has had its options
    archive = None if begun else archive_of_spark(os.environ)
    if archive is not None and (classes := reading(archive)):
        settings[_JAVA] = " ".join(f'"{option}"' for option in classes)
    return settings


def _writing(
    checkpoint: str, jars: Sequence[Path], given: Mapping[str, str], *, submitted: bool, here: bool
) -> Mapping[str, str]:
    """How checkpoints are written, where that is known to be safe."""
    scheme = urlsplit(checkpoint).scheme
    if given.get(_WRITER) == FILE_CHECKPOINTS[_WRITER] and scheme not in ("", "file"):
        raise InvalidConfiguration(
            f"{_WRITER} is {FILE_CHECKPOINTS[_WRITER]}, and the checkpoint {checkpoint} is in no directory: there a "
            "file that is written again would stay as it was, so leave that setting out",
            checkpoint=checkpoint,
        )
    if not checkpoint:
        return {}
    if scheme == "s3a":
        if not _may_have(_S3, jars, given, submitted=submitted):
            checkpoint_writing(checkpoint, jars)  # refuses
        known = all(any(jar.name.startswith(of) for jar in jars) for of in (_S3, _S3_WRITER))
        return S3_CHECKPOINTS if known else {}
    leads_elsewhere = "HADOOP_CONF_DIR" in os.environ or urlsplit(given.get(_FILE_SYSTEM, "")).scheme not in (
        "",
        "file",
    )
    if scheme == "file" or (not scheme and here and not submitted and not leads_elsewhere):
        return FILE_CHECKPOINTS
    return {}
