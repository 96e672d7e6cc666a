"""Who waits for a job's first answer is told what the job is doing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keyhole.demo.batch_logs import BatchLogs
from keyhole.demo.starting import step

SAID = [
    ("Picked up JAVA_TOOL_OPTIONS: -XX:-UsePerfData", "its process starts"),
    ("Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties", "Spark's JVM starts"),
    ('Setting default log level to "WARN".', "Spark's JVM is up, its session starts"),
    (
        '{"level": "INFO", "logger": "keyhole.rpc.server", "message": "started job 127.0.0.1:20094"}',
        "Spark's session is up, its queries start",
    ),
    ("WARN ResolveWriteToStream: spark.sql.adaptive.enabled is not", "their first batches begin"),
]


@pytest.mark.parametrize("lines", range(1, len(SAID) + 1))
def test_each_step_is_told_once_it_is_reached(tmp_path: Path, lines: int) -> None:
    said = "".join(f"{line}\n" for line, _ in SAID[:lines])
    assert SAID[lines - 1][1] in step(said, BatchLogs(tmp_path / "checkpoint", tmp_path / "logs"))


@pytest.mark.parametrize(
    ("batch", "offsets", "shown"),
    [
        (0, {"readings": {"0": 100, "1": 2_000}}, "its first batch runs: 2,100 records"),
        (0, None, "its first batch runs"),
        (3, {"readings": {"0": 100}}, "its batch 3 runs"),
    ],
)
def test_of_a_batch_it_is_told_how_many_records_it_has(
    tmp_path: Path, batch: int, offsets: dict[str, dict[str, int]] | None, shown: str
) -> None:
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "checkpoint" / "offsets" / str(batch)).write_text(
        "v1\n" if offsets is None else f"v1\n{{}}\n{json.dumps(offsets)}"
    )
    assert step("anything\n", BatchLogs(tmp_path / "checkpoint", tmp_path / "logs")) == shown
