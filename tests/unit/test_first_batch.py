"""What is refused before a query's first batch: a checkpoint that won't be there again, workers without Keyhole."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext, cloudpickle

from keyhole.errors import InvalidConfiguration
from keyhole.protocol.epoch_of_batch import OnNewCheckpoint
from keyhole.spark.driver.first_batch import check_checkpoint, check_told, check_workers, check_workers_once, probe

TEMPORARY = "file:/tmp/temporary-5a0e35f7-2c0c-4a3e-9c3f-0e6f8d5b1c11"


def test_a_query_without_a_checkpoint_location_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidConfiguration, match=r"query 'counts' has no checkpoint location") as caught:
        check_checkpoint("counts", TEMPORARY, "refuse", name=None, common=None)
    assert all(word in caught.value.message for word in (TEMPORARY, "checkpointLocation", '"reset"', '"continue"'))


@pytest.mark.parametrize(
    ("location", "on_new_checkpoint"),
    [
        (TEMPORARY, "reset"),
        (TEMPORARY, "continue"),
        ("file:/checkpoints/counts", "refuse"),
        ("s3a://bucket/temporary", "refuse"),
        (f"{TEMPORARY}/counts", "refuse"),
    ],
)
def test_a_lasting_one_is_taken_and_any_where_the_job_says_what_a_new_one_means(
    location: str, on_new_checkpoint: OnNewCheckpoint
) -> None:
    check_checkpoint("counts", location, on_new_checkpoint, name=None, common=None)


COMMON = "file:/checkpoints"
RANDOM = f"{COMMON}/5a0e35f7-2c0c-4a3e-9c3f-0e6f8d5b1c11"


def test_a_query_without_a_name_below_the_location_of_all_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidConfiguration, match=r"query 'counts' has no name") as caught:
        check_checkpoint("counts", RANDOM, "refuse", name=None, common=COMMON)
    assert all(word in caught.value.message for word in (RANDOM, "queryName", "checkpointLocation"))


@pytest.mark.parametrize(
    ("location", "on_new_checkpoint", "name", "common"),
    [
        (f"{COMMON}/counts", "refuse", "counts", COMMON),
        (RANDOM, "refuse", None, None),  # a folder that somebody has named so
        (RANDOM, "refuse", "5a0e35f7-2c0c-4a3e-9c3f-0e6f8d5b1c11", COMMON),
        (RANDOM, "reset", None, COMMON),
        (RANDOM, "continue", None, COMMON),
    ],
)
def test_one_that_has_a_name_or_says_what_a_new_checkpoint_means_is_taken(
    location: str, on_new_checkpoint: OnNewCheckpoint, name: str | None, common: str | None
) -> None:
    check_checkpoint("counts", location, on_new_checkpoint, name=name, common=common)


class Spark:
    """As much of a SparkContext as is asked. `tasks`: how many it was asked to run."""

    def __init__(self, master: str, python: str) -> None:
        self.master = master
        self.pythonExec = python
        self.tasks = 0

    def parallelize(self, rows: list[int], partitions: int) -> Any:
        return self

    def mapPartitions(self, function: Any) -> Any:  # noqa: N802 - Spark's name
        self._function = function
        return self

    def collect(self) -> list[tuple[str, str, str]]:
        self.tasks += 1
        return list(self._function(iter(())))


@pytest.mark.parametrize(
    ("master", "python", "tasks"),
    [
        ("local", sys.executable, 0),
        ("local[2]", sys.executable, 0),
        ("local-cluster[2,1,1024]", sys.executable, 1),
        ("spark://driver:7077", sys.executable, 1),
        ("local[*]", "/usr/bin/env", 1),
        ("local[*]", "no-such-python", 1),
    ],
)
def test_a_task_is_run_only_where_workers_may_be_other_than_the_driver(master: str, python: str, tasks: int) -> None:
    spark = Spark(master, python)
    check_workers(cast("SparkContext", spark))
    assert spark.tasks == tasks


def test_workers_that_were_found_fit_are_not_asked_again_and_others_are() -> None:
    spark, other = Spark("spark://driver:7077", sys.executable), Spark("spark://driver:7077", sys.executable)
    for context in (spark, spark, other):
        check_workers_once(cast("SparkContext", context))
    assert (spark.tasks, other.tasks) == (1, 1)


def test_an_interpreter_of_another_environment_is_another_one_though_it_is_the_same_program(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(Path(sys.executable).resolve())
    spark = Spark("local[2]", str(tmp_path / "python"))
    check_workers(cast("SparkContext", spark))
    assert spark.tasks == 1


def test_a_worker_without_keyhole_is_named_with_what_to_set() -> None:
    dumps: Any = cloudpickle.dumps  # it has no types
    code = (
        "import sys; sys.modules['keyhole'] = None\n"
        "from pyspark import cloudpickle\n"
        f"print(repr(list(cloudpickle.loads(bytes.fromhex('{dumps(probe()).hex()}'))(iter(())))))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    workers: list[tuple[str, str, str]] = eval(said)
    assert [(python, problem[:19]) for python, _, problem in workers] == [(sys.executable, "ModuleNotFoundError")]
    with pytest.raises(InvalidConfiguration, match="workers can't load Keyhole") as caught:
        check_told("python3", lambda: workers)
    assert all(word in caught.value.message for word in (sys.executable, "ModuleNotFoundError", "PYSPARK_PYTHON"))
    assert "\n" not in caught.value.message


class _JavaError(Py4JJavaError):  # type: ignore[misc]  # py4j has no types
    def __init__(self, text: str) -> None:
        Exception.__init__(self)
        self._text = text

    def __str__(self) -> str:
        return self._text


def failing(text: str) -> Iterable[tuple[str, str, str]]:
    raise _JavaError(text)


@pytest.mark.parametrize(
    "line",
    [
        "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has another version: 3.9 than in driver.",
        "python3: Error while finding module specification for 'keyhole.spark.daemon' (No module named 'keyhole')",
        'Caused by: java.io.IOException: Cannot run program "python3": error=2, No such file or directory',
    ],
)
def test_a_python_that_can_not_be_a_worker_is_told_in_one_line(line: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        check_told("python3", lambda: failing(f"org.apache.spark.SparkException: \n{line}\n\tat org.apache.Stack(1)\n"))
    assert line in caught.value.message
    assert "PYSPARK_PYTHON" in caught.value.message
    assert "\n" not in caught.value.message


def test_what_else_may_end_the_task_is_raised_as_it_is() -> None:
    with pytest.raises(Py4JJavaError, match="the executor is lost"):
        check_told("python3", lambda: failing("the executor is lost"))
