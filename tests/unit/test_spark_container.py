"""keyhole.spark.container: what the job's image runs as a driver and as an executor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from keyhole.errors import InvalidConfiguration
from keyhole.spark import session
from keyhole.spark.container import command_of, environ_of
from keyhole.spark.stacks import STACKS

HOME = Path("/spark")
SCHEDULER = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "EXECID",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "job-exec-1",
    "SPARK_EXECUTOR_MEMORY": "700m",
}


def test_a_driver_is_a_python_module_with_its_arguments() -> None:
    assert command_of(["driver", "jobs.x", "--a"], {}, HOME) == [sys.executable, "-m", "jobs.x", "--a"]


def test_a_drivers_jvm_has_deep_stacks_and_what_its_pod_says_beside() -> None:
    """By Java's own megabyte a job that is cancelled ends in a StackOverflowError."""
    assert environ_of(["driver", "jobs.x"], {}, HOME)["SPARK_SUBMIT_OPTS"] == STACKS
    given = {"SPARK_SUBMIT_OPTS": "-Dx=y -Xss1m", "OTHER": "z"}
    environ = environ_of(["driver", "jobs.x"], given, HOME)
    assert environ["SPARK_SUBMIT_OPTS"] == f"{STACKS} -Dx=y -Xss1m", "the pod's own counts: it is the last one"
    assert environ["OTHER"] == "z"
    assert environ_of(["driver", "jobs.x"], environ, HOME) == environ
    assert "SPARK_SUBMIT_OPTS" not in environ_of(["executor"], SCHEDULER, HOME)


def test_a_session_of_a_cluster_has_the_same_stacks_as_one_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever has started the process."""
    for name in ("SPARK_SUBMIT_OPTS", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(session, "SparkSession", MagicMock())
    monkeypatch.setattr(session, "remember_classes", lambda _: None)
    settings = session.cluster_settings([], partitions=2)
    session.start_session("x", settings)
    assert os.environ["SPARK_SUBMIT_OPTS"] == STACKS
    assert not [name for name in settings if "JavaOptions" in name], "those of spark-defaults.conf stay"
    assert STACKS in session.local_settings([], tmp_path)["spark.driver.extraJavaOptions"]


def test_an_executor_is_told_all_that_sparks_scheduler_says() -> None:
    command = command_of(["executor"], SCHEDULER, HOME)
    backend = command.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
    flags = dict(zip(command[backend + 1 :: 2], command[backend + 2 :: 2], strict=True))
    assert flags == {
        "--driver-url": "spark://CoarseGrainedScheduler@driver:7078",
        "--executor-id": "EXECID",
        "--cores": "1",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.7",
        "--resourceProfileId": "0",
        "--podName": "job-exec-1",
    }
    assert {"-Xms700m", "-Xmx700m"} <= set(command[:backend])


def test_an_executors_java_options_keep_their_order() -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Doption={number}" for number in (10, 9, 0)}
    assert command_of(["executor"], {**SCHEDULER, **options}, HOME)[1:4] == ["-Doption=0", "-Doption=9", "-Doption=10"]


def test_an_executors_own_class_path_comes_before_sparks() -> None:
    command = command_of(["executor"], {**SCHEDULER, "SPARK_CLASSPATH": "/opt/jars/*"}, HOME)
    assert command[command.index("-cp") + 1] == "/opt/jars/*:/spark/jars/*"


def test_java_home_says_which_java() -> None:
    assert command_of(["executor"], {**SCHEDULER, "JAVA_HOME": "/java"}, HOME)[0] == "/java/bin/java"


@pytest.mark.parametrize("name", sorted(SCHEDULER))
def test_a_variable_that_the_scheduler_did_not_set_is_named(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"{name} is not set"):
        command_of(["executor"], {key: value for key, value in SCHEDULER.items() if key != name}, HOME)


@pytest.mark.parametrize("arguments", [[], ["driver"], ["executor", "1"], ["master"]])
def test_an_unknown_role_is_refused_with_the_usage(arguments: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "keyhole.spark.container", *arguments], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr.partition(":")[0]) == (2, "usage")
