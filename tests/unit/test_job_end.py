"""How a job's process ends."""

from __future__ import annotations

from typing import cast

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from keyhole.errors import Fenced
from keyhole.local.processes import last_words
from keyhole.spark.running import run_job
from keyhole.spark.write_path.real_time_query import RealTimeQuery


class Failed:
    """A query that an exception has ended, as far as a job's end asks it."""

    isActive = False  # noqa: N815 - as PySpark calls it

    def __init__(self, by: str = "the sensor is null") -> None:
        self._by = by

    def stop(self) -> None:
        pass

    def awaitTermination(self) -> None:  # noqa: N802 - as PySpark calls it
        plan = "Project [a]\n" * 1_000
        raise StreamingQueryException(f"{self._by}\n=== Streaming Query ===\nLogical Plan:\n{plan}")


def test_what_ended_a_query_is_the_last_that_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_job("a job", lambda _: [cast("StreamingQuery", Failed())]) == 1
    said = capfd.readouterr().err
    assert said.endswith("\na job: the sensor is null\n")
    assert said.index("Logical Plan:") < said.index("Traceback")
    assert "Traceback" in last_words(said)
    assert "StreamingQueryException: the sensor is null" in last_words(said)


def test_what_a_task_of_the_query_has_raised_is_said_in_one_sentence_at_the_end(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As Spark tells it."""
    text = (
        "[STREAM_FAILED] ... Return Message: Traceback (most recent call last):\n"
        "pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:\n"
        '  File "jobs/vital_signs/files.py", line 159, in _told\n'
        "keyhole.errors.InvalidConfiguration: s3://signals can't be written (no): give it a bucket\n"
        " SQLSTATE: 39000 SQLSTATE: XXKST"
    )
    assert run_job("a job", lambda _: [cast("StreamingQuery", Failed(text))]) == 1
    assert capfd.readouterr().err.endswith("\na job: s3://signals can't be written (no): give it a bucket\n")


def test_what_keyhole_has_stopped_a_real_time_query_for_is_said_in_one_sentence(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Replaced(Failed):
        def awaitTermination(self) -> None:  # noqa: N802 - as PySpark calls it
            raise Fenced("the query was taken over by run 2")

    assert run_job("a job", lambda _: cast("RealTimeQuery", Replaced())) == 1
    assert capfd.readouterr().err == "a job: the query was taken over by run 2\n"
