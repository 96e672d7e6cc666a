"""kill -9 of a driver whose checkpoint is in an object store, Spark's state and all: the recount agrees.

What Spark knows of the sums is only there. RocksDB's files get there by another way than those of Spark's logs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keyhole.protocol.failpoints import Step
from keyhole.spark.running import ROCKSDB
from tests.support.object_store import ObjectStore
from tests.support.pipeline import Pipeline


@pytest.fixture
def pipeline(
    kafka: str,
    spark_jars: list[Path],
    s3_jars: list[Path],
    object_store: ObjectStore,
    credentials: None,
    tmp_path: Path,
) -> Iterator[Pipeline]:
    running = Pipeline(
        tmp_path,
        kafka,
        [*spark_jars, *s3_jars],
        mode="update",
        checkpoint=object_store.at("killed"),
        spark={
            **ROCKSDB,
            "spark.sql.shuffle.partitions": "2",
            **{f"spark.hadoop.{name}": value for name, value in object_store.place.items()},
        },
    )
    yield running
    running.close()


def test_a_driver_that_is_killed_goes_on_from_a_checkpoint_in_an_object_store_and_counts_all_once(
    pipeline: Pipeline, object_store: ObjectStore
) -> None:
    pipeline.start_server()
    # Readers have the epoch, and Spark has not noted its batch.
    pipeline.kill_driver_at([Step.DRIVER_COMPLETE])
    pipeline.await_recount()
    names = object_store.names("killed")
    assert {"metadata", "offsets/0", "commits/0", "state/0/0/1.zip"} <= set(names)
    # Nothing was put there under another name first.
    assert [name for name in names if ".tmp" in name] == []
    assert not (pipeline.directory / "checkpoint").exists()
