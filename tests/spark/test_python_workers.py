"""Spark's Python workers begin with all loaded, and the driver asks the JVM once for each of its classes."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

from keyhole.errors import InvalidConfiguration
from keyhole.spark import queryable
from keyhole.spark.driver.first_batch import check_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOADED = (
    "grpc",
    "keyhole.spark.worker.processor_task",
    "keyhole.spark.worker.stage",
    "pandas",
    "pyarrow",
    "pyspark.worker",
)

# What has threads as it is loaded, and makes them anew in a process that is forked: OpenBLAS (no name of its own) and
# jemalloc. Python has but the one that loads.
THREADS = """
import threading
from pathlib import Path
import keyhole.spark.daemon
print(threading.active_count(), *sorted({path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}))
"""


def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import os

    before = ",".join(name for name in LOADED if name in sys.modules)
    parent = Path(f"/proc/{os.getppid()}/cmdline").read_text().replace("\0", " ")
    for _ in batches:
        yield pa.RecordBatch.from_pylist([{"before": before, "parent": parent}])


def test_a_worker_is_forked_with_all_loaded(spark: SparkSession) -> None:
    (row,) = spark.range(1).mapInArrow(seen, "before string, parent string").collect()
    assert "keyhole.spark.daemon" in row["parent"]
    assert row["before"] == ",".join(LOADED)


def without_keyhole(directory: Path) -> Path:
    """A Python that has nothing but its own library."""
    bare = directory / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    return bare


def test_workers_of_a_python_that_has_no_keyhole_are_told_in_one_line(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = without_keyhole(tmp_path)
    check_workers(spark.sparkContext)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(bare))
    with pytest.raises(InvalidConfiguration, match=f"{bare}, which Spark starts .* No module named .*PYSPARK_PYTHON"):
        check_workers(spark.sparkContext)


def test_a_lookup_in_a_batch_asks_workers_before_it_asks_a_proxy(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(without_keyhole(tmp_path)))
    with pytest.raises(InvalidConfiguration, match=r"which Spark starts .* No module named .*PYSPARK_PYTHON"):
        queryable.lookup(spark.range(1), "shop/orders", key="id", proxy="127.0.0.1:1")


def test_what_is_loaded_has_no_threads_that_a_fork_would_lose() -> None:
    printed = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True).stdout.split()
    count, *names = printed
    assert count == "1"
    assert set(names) <= {Path(sys.executable).name, "python", "python3", "jemalloc_bg_thd"}


def test_the_jvm_is_asked_once_for_a_class(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    jvm = spark._jvm
    assert jvm is not None
    client = jvm._gateway_client
    send = client.send_command
    asked: Counter[str] = Counter()

    def counting(command: str, *arguments: object, **more: object) -> object:
        if command.startswith("r\nu\n"):
            asked[command.split("\n")[2]] += 1
        return send(command, *arguments, **more)

    monkeypatch.setattr(client, "send_command", counting)
    for _ in range(3):
        spark.range(1).select(f.expr("id + 1").alias("n"), f.lit(1)).where(f.col("n") > 1)
        # A package may get more classes, so it is asked for each time.
        assert jvm.java.util.UUID.randomUUID() is not None
    assert asked["java"] >= 3
    assert {name: times for name, times in asked.items() if "." not in name and name != "java" and times > 1} == {}
