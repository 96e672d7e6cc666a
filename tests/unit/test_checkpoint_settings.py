"""How Spark writes a checkpoint depends on where it is; and where it can't be written, what is to be done."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyhole.errors import InvalidConfiguration
from keyhole.spark.running import advice
from keyhole.spark.session import FILE_CHECKPOINTS, S3_CHECKPOINTS, local_settings

(MANAGER,) = FILE_CHECKPOINTS
KAFKA, S3 = Path("/jars/spark-sql-kafka-0-10_2.13-4.2.0.jar"), Path("/jars/hadoop-aws-3.5.0.jar")


@pytest.mark.parametrize("checkpoint", ["", "/data/checkpoint", "file:/data/checkpoint"])
def test_on_this_machine_files_are_renamed_without_processes(checkpoint: str, tmp_path: Path) -> None:
    assert local_settings([KAFKA], tmp_path, checkpoint=checkpoint)[MANAGER] == FILE_CHECKPOINTS[MANAGER]


def test_in_an_object_store_nothing_is_renamed(tmp_path: Path) -> None:
    settings = local_settings([KAFKA, S3], tmp_path, checkpoint="s3a://bucket/checkpoint")
    assert settings[MANAGER] == S3_CHECKPOINTS[MANAGER]


def test_elsewhere_it_is_sparks_own_choice(tmp_path: Path) -> None:
    assert MANAGER not in local_settings([KAFKA], tmp_path, checkpoint="hdfs://namenode/checkpoint")


def test_an_object_store_without_its_connector_is_refused_before_spark_starts_with_how_to_have_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        local_settings([KAFKA], tmp_path, checkpoint="s3a://bucket/checkpoint")
    said = refused.value.message
    assert "s3a://bucket/checkpoint" in said
    assert "no hadoop-aws-*.jar" in said
    assert "python -m keyhole.local.fetch_jars spark-s3" in said


@pytest.mark.parametrize(
    ("checkpoint", "why", "to_do"),
    [
        ("s3://bucket/a", "No FileSystem for scheme", "the location is s3a://bucket/a"),
        (
            "s3a://bucket/a",
            "ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem",
            "fetch_jars spark-s3",
        ),
        ("s3a://bucket/a", "AccessDeniedException: 403", "endpoint, region and credentials"),
        ("/data/a", "Permission denied", "mount a volume"),
    ],
)
def test_what_to_do_where_a_location_can_not_be_written_to_is_told_by_where_it_is(
    checkpoint: str, why: str, to_do: str
) -> None:
    assert to_do in advice(checkpoint, why)
