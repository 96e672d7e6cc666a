"""The committed vectors are what Spark says today."""

from __future__ import annotations

import importlib.util

from pyspark.sql import SparkSession

from tests.support.vectors import FILE


def test_spark_makes_the_committed_vectors_again_byte_by_byte(spark: SparkSession) -> None:
    spec = importlib.util.spec_from_file_location("generate", FILE.parent / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.generate(spark) == FILE.read_text()
