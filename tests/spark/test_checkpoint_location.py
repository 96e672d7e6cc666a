"""A checkpoint location that can't be written to, or that there is none, is refused before anything is declared."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from keyhole.config import JobConfig
from keyhole.errors import InvalidConfiguration
from keyhole.spark import queryable
from keyhole.spark.running import require_writable
from tests.support.streams import Stream


def test_a_location_that_can_be_written_to_is_left_empty(spark: SparkSession, tmp_path: Path) -> None:
    require_writable(spark, str(tmp_path / "checkpoint"))
    assert [path for path in (tmp_path / "checkpoint").iterdir() if not path.name.endswith(".crc")] == []


@pytest.mark.parametrize("location", ["file:/proc/checkpoint", "nowhere://bucket/checkpoint"])
def test_any_other_is_refused_by_name(spark: SparkSession, location: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"checkpoint location {location} can't be written to"):
        require_writable(spark, location)


def test_a_query_that_is_given_none_ends_at_its_first_batch_before_anybody_is_asked(stream: Stream) -> None:
    sink = queryable.value("counts", key="k", config=JobConfig("app", ("127.0.0.1:1",), "127.0.0.1:1"))
    data = stream("k string, v int", [[{"k": "a", "v": 1}]])
    query = data.writeStream.foreachBatch(sink).start()
    with pytest.raises(StreamingQueryException, match="query 'counts' has no checkpoint location"):
        query.awaitTermination()
    assert isinstance(sink.failure, InvalidConfiguration)


def test_one_below_the_location_of_all_queries_needs_a_name(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    sink = queryable.value("counts", key="k", config=JobConfig("app", ("127.0.0.1:1",), "127.0.0.1:1"))
    data = stream("k string, v int", [[{"k": "a", "v": 1}]])
    spark.conf.set("spark.sql.streaming.checkpointLocation", f"file:{tmp_path}")
    try:
        query = data.writeStream.foreachBatch(sink).start()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    with pytest.raises(StreamingQueryException, match="query 'counts' has no name"):
        query.awaitTermination()
    assert isinstance(sink.failure, InvalidConfiguration)
