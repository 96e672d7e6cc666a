"""The image of the jobs: it has what each of them, and its source, needs."""

from __future__ import annotations

import json
import subprocess

import pytest

from keyhole.demo.described_jobs import job_names
from tests.support import images

pytestmark = pytest.mark.timeout(600, func_only=True)

IMPORTED = """
import importlib, json, sys
for job in sys.argv[1:]:
    for module in ("__main__", "source"):
        importlib.import_module(f"jobs.{job}.{module}")
from jobs.vital_signs.source import recordings
print(json.dumps({recording.name: len(recording.counts) for recording in recordings()}))
"""


@pytest.fixture(scope="module")
def spark_job() -> str:
    """The image's name."""
    return images.image("spark-job")


def test_every_job_and_its_source_can_be_imported_and_the_recordings_are_there(spark_job: str) -> None:
    command = [
        "docker",
        "run",
        "--rm",
        "--read-only",
        "--entrypoint",
        "python",
        spark_job,
        "-c",
        IMPORTED,
        *job_names(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    recordings = json.loads(done.stdout)
    assert sorted(recordings) == ["data.csv", "data2.csv", "data3.csv"]
    assert all(counts > 1000 for counts in recordings.values())
