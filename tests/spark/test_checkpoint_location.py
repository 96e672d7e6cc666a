"""A checkpoint location that can't be written to is refused before a query begins, by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from keyhole.errors import InvalidConfiguration
from keyhole.spark.running import require_writable


def test_a_location_that_can_be_written_to_is_left_empty(spark: SparkSession, tmp_path: Path) -> None:
    require_writable(spark, str(tmp_path / "checkpoint"))
    assert [path for path in (tmp_path / "checkpoint").iterdir() if not path.name.endswith(".crc")] == []


@pytest.mark.parametrize("location", ["file:/proc/checkpoint", "nowhere://bucket/checkpoint"])
def test_any_other_is_refused_by_name(spark: SparkSession, location: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"checkpoint location {location} can't be written to"):
        require_writable(spark, location)
