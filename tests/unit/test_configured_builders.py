"""What `queryable.configure` gives to a builder: what nobody has chosen, where it is safe; else it refuses."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from keyhole.errors import InvalidConfiguration, Unsupported
from keyhole.spark import configuring, queryable
from keyhole.spark.session import FILE_CHECKPOINTS, S3_CHECKPOINTS
from keyhole.spark.stacks import STACKS

(WRITER,) = FILE_CHECKPOINTS
PARTITIONS, ZONE, DAEMON = "spark.sql.shuffle.partitions", "spark.sql.session.timeZone", "spark.python.daemon.module"
POLLING = {"spark.sql.streaming.pollingDelay": "50ms"}
HOST, ADDRESS, JARS = "spark.driver.host", "spark.driver.bindAddress", "spark.jars"
JAVA = "spark.driver.extraJavaOptions"
OF_THE_ENVIRONMENT = (
    "HADOOP_CONF_DIR",
    "MASTER",
    "PYSPARK_DRIVER_PYTHON",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_PYTHON",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
    "SPARK_REMOTE",
    "SPARK_SUBMIT_OPTS",
)


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in OF_THE_ENVIRONMENT:
        # Set first, so that what is set by configure is taken back.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(configuring, "archive_of_spark", lambda _: None)
    monkeypatch.setattr(configuring, "_find_spark_home", lambda: str(tmp_path / "no spark"))


def made(given: dict[str, str], **arguments: Any) -> dict[str, Any]:
    """The settings of a builder with these, once it is configured."""
    builder = SparkSession.Builder().config(map=dict(given))
    assert queryable.configure(builder, **arguments) is builder
    return dict(builder._options)


def jars_in(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).touch()
    return [folder / name for name in names]


def test_on_this_machine_a_builder_has_as_many_partitions_as_cores_and_nobody_else_connects() -> None:
    assert made({"spark.master": "local[3]"}) == {
        "spark.master": "local[3]",
        PARTITIONS: "3",
        ZONE: "UTC",
        DAEMON: "keyhole.spark.daemon",
        **POLLING,
        HOST: "127.0.0.1",
        ADDRESS: "127.0.0.1",
    }
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert STACKS in os.environ["SPARK_SUBMIT_OPTS"]


def test_on_a_cluster_partitions_addresses_and_python_are_left_to_it() -> None:
    assert made({"spark.master": "yarn"}) == {
        "spark.master": "yarn",
        ZONE: "UTC",
        DAEMON: "keyhole.spark.daemon",
        **POLLING,
    }
    assert made({"spark.master": "yarn"}, partitions=32)[PARTITIONS] == "32"
    assert made({"spark.master": "local-cluster[2,1,1024]"}).keys() & {PARTITIONS, HOST} == set()
    assert "PYSPARK_PYTHON" not in os.environ


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({PARTITIONS: "7"}, {PARTITIONS: "7"}),
        ({ZONE: "Asia/Tokyo", DAEMON: "mine.daemon"}, {ZONE: "Asia/Tokyo", DAEMON: "mine.daemon"}),
        ({HOST: "driver.example"}, {HOST: "driver.example", ADDRESS: None}),
        ({WRITER: "another.Manager"}, {WRITER: "another.Manager"}),
        ({JAVA: "-Xmx1g"}, {JAVA: "-Xmx1g"}),
    ],
    ids=["partitions", "zone and daemon", "one of the addresses", "how checkpoints are written", "options of Java"],
)
def test_what_the_builder_has_stays(
    given: dict[str, str], expected: dict[str, str | None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive = tmp_path / "spark.jsa"
    archive.write_bytes(b"classes")
    monkeypatch.setattr(configuring, "archive_of_spark", lambda _: archive)
    settings = made({"spark.master": "local[2]", **given}, checkpoint="file:/checkpoints")
    assert {name: settings.get(name) for name in expected} == expected


def test_what_is_said_to_spark_in_its_other_ways_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text(f"# {PARTITIONS} 1\n  {ZONE}   Asia/Tokyo \nspark.master=yarn\n")
    assert made({}) == {DAEMON: "keyhole.spark.daemon", **POLLING}
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--master local[5] --conf {DAEMON}=mine pyspark-shell")
    assert made({}) == {PARTITIONS: "5", HOST: "127.0.0.1", ADDRESS: "127.0.0.1", **POLLING}
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(configuring, "_of_the_submission", lambda: {"spark.master": "yarn", DAEMON: "mine"})
    assert made({}) == {ZONE: "UTC", **POLLING}


def test_what_is_set_afterwards_counts() -> None:
    builder = queryable.configure(SparkSession.Builder().master("local[2]")).config(ZONE, "Asia/Tokyo")
    assert builder._options[ZONE] == "Asia/Tokyo"


def test_a_python_that_somebody_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    made({"spark.master": "local[2]", "spark.pyspark.python": "/opt/python"})
    assert "PYSPARK_PYTHON" not in os.environ
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python")
    made({"spark.master": "local[2]"})
    assert os.environ["PYSPARK_PYTHON"] == "/usr/bin/python"


def test_the_jvm_has_an_archive_of_its_classes_unless_it_runs_already(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive = tmp_path / "spark.jsa"
    archive.write_bytes(b"classes")
    monkeypatch.setattr(configuring, "archive_of_spark", lambda _: archive)
    assert f'"-XX:SharedArchiveFile={archive}"' in made({})[JAVA]
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace())
    assert JAVA not in made({})


@pytest.mark.parametrize(
    ("given", "checkpoint", "writer"),
    [
        ({}, "", None),
        ({}, "/checkpoints", FILE_CHECKPOINTS),
        ({}, "file:/checkpoints", FILE_CHECKPOINTS),
        ({"spark.sql.streaming.checkpointLocation": "file:/checkpoints"}, "", FILE_CHECKPOINTS),
        ({"spark.hadoop.fs.defaultFS": "hdfs://namenode"}, "/checkpoints", None),
        ({"spark.hadoop.fs.defaultFS": "hdfs://namenode"}, "file:/checkpoints", FILE_CHECKPOINTS),
        ({"spark.master": "yarn"}, "/checkpoints", None),
        ({"spark.master": "yarn"}, "file:/mounted", FILE_CHECKPOINTS),
        ({}, "hdfs://namenode/checkpoints", None),
        ({"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0"}, "s3a://bucket/checkpoints", None),
    ],
)
def test_checkpoints_are_written_without_processes_where_it_is_said_that_they_are_files(
    given: dict[str, str], checkpoint: str, writer: dict[str, str] | None
) -> None:
    assert made(given, checkpoint=checkpoint).get(WRITER) == (writer[WRITER] if writer else None)


def test_a_path_alone_is_no_file_for_certain_where_hadoop_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert WRITER not in made({}, checkpoint="/checkpoints")
    assert made({}, checkpoint="file:/checkpoints")[WRITER] == FILE_CHECKPOINTS[WRITER]


def test_in_an_object_store_nothing_is_renamed_where_the_jars_for_it_are_there(tmp_path: Path) -> None:
    jars = jars_in(tmp_path, "hadoop-aws-3.5.0.jar", "spark-hadoop-cloud_2.13-4.2.0.jar")
    settings = made({}, checkpoint="s3a://bucket/checkpoints", jars=jars)
    assert settings[WRITER] == S3_CHECKPOINTS[WRITER]
    assert settings[JARS] == ",".join(map(str, jars))
    with pytest.raises(InvalidConfiguration, match=r"is in an object store, and there is no hadoop-aws-\*\.jar"):
        made({}, checkpoint="s3a://bucket/checkpoints")


def test_kafka_s_connector_is_asked_for_where_it_can_not_come_from_anywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (jar,) = jars_in(tmp_path, "spark-sql-kafka-0-10_2.13-4.2.0.jar")
    with pytest.raises(InvalidConfiguration, match=r"no connector for Kafka: give configure its jars"):
        made({}, kafka=True)
    made({}, kafka=True, jars=[jar])
    made({JARS: str(jar)}, kafka=True)
    made({"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"}, kafka=True)
    made({"spark.driver.extraClassPath": "/opt/jars/*"}, kafka=True)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--jars {jar} pyspark-shell")
    made({}, kafka=True)


def test_what_can_not_work_is_refused_by_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (jar,) = jars_in(tmp_path, "a.jar")
    with pytest.raises(InvalidConfiguration, match=r"takes a builder.*it was given a SimpleNamespace"):
        queryable.configure(SimpleNamespace())  # type: ignore[arg-type]
    with pytest.raises(InvalidConfiguration, match="jars are given twice"):
        made({JARS: "/b.jar"}, jars=[jar])
    with pytest.raises(InvalidConfiguration, match=r"there is no jar .*missing\.jar"):
        made({}, jars=[tmp_path / "missing.jar"])
    with pytest.raises(InvalidConfiguration, match="partitions is 0"):
        made({}, partitions=0)
    with pytest.raises(InvalidConfiguration, match=r"hdfs://namenode/a is in no directory: .* leave that setting out"):
        made(dict(FILE_CHECKPOINTS), checkpoint="hdfs://namenode/a")
    with pytest.raises(Unsupported, match=r"Spark Connect gives none.*\(spark.remote is set\)"):
        made({"spark.remote": "sc://host"})
    monkeypatch.setattr(SparkContext, "_active_spark_context", SimpleNamespace())
    with pytest.raises(InvalidConfiguration, match="runs in this process already and keeps what it began with"):
        made({})
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(configuring, "_of_the_submission", lambda: {"spark.master": "local[2]"})
    with pytest.raises(InvalidConfiguration, match="give the jars to spark-submit by --jars"):
        made({}, jars=[jar])


def test_a_refused_builder_is_as_it_was() -> None:
    builder = SparkSession.Builder().master("local[2]")
    with pytest.raises(InvalidConfiguration):
        queryable.configure(builder, checkpoint="s3a://bucket/checkpoints")
    assert builder._options == {"spark.master": "local[2]"}
