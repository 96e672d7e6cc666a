"""How a job's process ends."""

from __future__ import annotations

from typing import cast

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from keyhole.local.processes import last_words
from keyhole.spark.running import run_job


class Failed:
    """A query that an exception has ended, as far as a job's end asks it."""

    isActive = False  # noqa: N815 - as PySpark calls it

    def stop(self) -> None:
        pass

    def awaitTermination(self) -> None:  # noqa: N802 - as PySpark calls it
        plan = "Project [a]\n" * 1_000
        raise StreamingQueryException(f"the sensor is null\n=== Streaming Query ===\nLogical Plan:\n{plan}")


def test_what_ended_a_query_is_the_last_that_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_job("a job", lambda _: [cast("StreamingQuery", Failed())]) == 1
    said = capfd.readouterr().err
    assert said.endswith("\na job: the sensor is null\n")
    assert said.index("Logical Plan:") < said.index("Traceback")
    assert "Traceback" in last_words(said)
    assert "StreamingQueryException: the sensor is null" in last_words(said)
