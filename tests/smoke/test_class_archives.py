"""The JVMs of this machine begin with the archive of their classes that pytest has had made before the first test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.spark.session import archive_of_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_has_its_classes_from_the_archive(spark: SparkSession) -> None:
    jvm, archive = spark.sparkContext._jvm, archive_of_spark(os.environ)
    assert jvm is not None
    assert archive is not None
    process = jvm.java.lang.ProcessHandle.current().pid()
    maps = Path(f"/proc/{process}/maps").read_text()
    # Of a Java that makes none there is an empty one.
    assert (str(archive) in maps) == (archive.stat().st_size > 0)
