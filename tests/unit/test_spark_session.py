"""The session of a job of one's own, as far as it is told before Spark starts: names, Spark Connect, spark-submit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from keyhole.config import JobConfig
from keyhole.errors import InvalidConfiguration, Unsupported
from keyhole.spark import queryable
from keyhole.spark import session as sessions
from keyhole.spark.session import FILE_CHECKPOINTS, session

APPLICATION = "KEYHOLE_JOB_APPLICATION"
(MANAGER,) = FILE_CHECKPOINTS
CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
S3 = "org.apache.hadoop.fs.s3a.S3AFileSystem"


class Conf(dict[str, str]):
    """Of a session."""

    set = dict.__setitem__


def session_at(master: str, default: str = "file:///", conf: Mapping[str, str] | None = None, *classes: str) -> Any:
    """As far as one says where it is.

    Args:
        default: Its default file system.
        conf: Of Spark, beside what the job gives.
        classes: Of connectors that its JVM has.
    """
    utils = SimpleNamespace(classIsLoadable=classes.__contains__)
    spark = SimpleNamespace(util=SimpleNamespace(Utils=utils))
    hadoop = SimpleNamespace(hadoopConfiguration=lambda: {"fs.defaultFS": default})
    return SimpleNamespace(
        sparkContext=SimpleNamespace(master=master, _jsc=hadoop),
        conf=Conf(conf or {}),
        _jvm=SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(spark=spark))),
    )


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, str]]:
    """The settings of sessions that would have been started."""
    given: list[Mapping[str, str]] = []
    for name in (APPLICATION, "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "SPARK_CONF_DIR"):
        # Set first, so that what a session sets is taken back.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)

    def start(_: str, settings: Mapping[str, str]) -> Any:
        given.append(settings)
        return session_at("k8s://https://kubernetes.default.svc")

    monkeypatch.setattr(sessions, "start_session", start)
    return given


def test_on_this_machine_it_is_local_and_the_states_have_its_name(started: list[Mapping[str, str]]) -> None:
    session("shop", {"spark.sql.session.timeZone": "Asia/Tokyo"}, partitions=3)
    (settings,) = started
    assert settings["spark.master"] == "local[2]"
    assert settings["spark.sql.shuffle.partitions"] == "3"
    assert settings["spark.sql.session.timeZone"] == "Asia/Tokyo"
    # Jars come by Spark's own ways.
    assert "spark.jars" not in settings
    assert os.environ[APPLICATION] == "shop"


def test_under_spark_submit_master_and_memory_are_those_of_the_submission(
    started: list[Mapping[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setenv(APPLICATION, "market")
    session("shop")
    (settings,) = started
    assert not {name for name in settings if name.startswith(("spark.master", "spark.driver", "spark.local"))}
    assert os.environ[APPLICATION] == "market"


@pytest.mark.parametrize(
    ("submitted", "quick"),
    [
        (session_at("local[2]"), True),
        (session_at("local"), True),
        (session_at("local[*]", "file:///", {CHECKPOINTS: "file:/mnt/checkpoints"}), True),
        (session_at("local[*]", "file:///", {CHECKPOINTS: "/mnt/checkpoints"}), True),
        (session_at("yarn"), False),
        (session_at("local-cluster[2,1,1024]"), False),
        (session_at("local[2]", "hdfs://namenode"), False),
        (session_at("local[2]", "file:///", {CHECKPOINTS: "s3a://bucket/checkpoints"}), False),
        (session_at("local[2]", "file:///", {}, S3), False),
    ],
    ids=[
        "local",
        "one core",
        "file",
        "path",
        "a cluster",
        "a cluster for tests",
        "hdfs",
        "checkpoints elsewhere",
        "a connector",
    ],
)
def test_under_spark_submit_on_this_machine_files_are_renamed_without_processes_where_nothing_leads_elsewhere(
    started: list[Mapping[str, str]], monkeypatch: pytest.MonkeyPatch, submitted: Any, quick: bool
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(sessions, "start_session", lambda *_: submitted)
    assert session("shop") is submitted
    assert submitted.conf.get(MANAGER) == (FILE_CHECKPOINTS[MANAGER] if quick else None)


def test_how_checkpoints_are_written_is_as_somebody_has_chosen(
    started: list[Mapping[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    submitted = session_at("local[2]", "file:///", {MANAGER: "another.Manager"})
    monkeypatch.setattr(sessions, "start_session", lambda *_: submitted)
    session("shop")
    assert submitted.conf == {MANAGER: "another.Manager"}


@pytest.mark.parametrize(
    ("defaults", "local"),
    [
        ("spark.app.name shop\nspark.master k8s://https://kubernetes.default.svc\n", False),
        ("  spark.master=yarn", False),
        ("# spark.master yarn\nspark.master.rest.enabled false\n", True),
        (None, True),
    ],
    ids=["the chart's", "by =", "another setting", "no file"],
)
def test_where_spark_s_defaults_name_a_master_the_session_is_there(
    started: list[Mapping[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, defaults: str | None, local: bool
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    if defaults is not None:
        (tmp_path / "spark-defaults.conf").write_text(defaults)
    session("shop")
    (settings,) = started
    assert ("spark.master" in settings) is local


def test_defaults_of_spark_that_cannot_be_read_are_told_by_their_path(
    started: list[Mapping[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfiguration, match=r"SPARK_CONF_DIR is .*spark-defaults.conf can't be read"):
        session("shop")
    assert started == []


def test_a_job_that_needs_kafka_is_told_how_to_get_the_connector(
    started: list[Mapping[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "has_kafka", lambda _: False)
    with pytest.raises(
        InvalidConfiguration, match=r"Spark has no connector for Kafka: .* --jars \"\$\(keyhole jars\)\""
    ):
        session("shop", kafka=True)
    session("shop")
    monkeypatch.setattr(sessions, "has_kafka", lambda _: True)
    session("shop", kafka=True)
    assert len(started) == 3


def test_what_can_not_be_is_told_before_spark_starts(
    started: list[Mapping[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidConfiguration, match="the application's name is 'my shop'"):
        session("my shop")
    with pytest.raises(Unsupported, match=r"run the job with spark-submit.*\(spark.remote is set\)"):
        session("shop", {"spark.remote": "sc://host"})
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    with pytest.raises(Unsupported, match=r"Spark Connect gives none.*\(SPARK_REMOTE is set\)"):
        session("shop")
    config = JobConfig(application="shop", servers=("127.0.0.1:1",), bootstrap_servers="127.0.0.1:2")
    with pytest.raises(Unsupported, match="SPARK_REMOTE is set"):
        queryable.value("totals", key="customer", config=config)
    assert started == []
