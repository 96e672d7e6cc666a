"""The states that a job's description names are those that its queries make: seen without Spark."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from keyhole import logs
from keyhole.demo.command import REAL_TIME
from keyhole.demo.described_jobs import JobDescription, described, job_names
from keyhole.spark import queryable
from keyhole.spark.sink import Sink

OF_KAFKA = {"KEYHOLE_JOB_BOOTSTRAP_SERVERS": "kafka:9092", "KEYHOLE_JOB_SERVERS": "server:7410"}


class Streamed:
    """In place of a session, of its data frames and of queries: what is called gives it again. It keeps their sinks."""

    def __init__(self) -> None:
        self.sinks: list[Sink] = []

    def foreachBatch(self, sink: Sink) -> Streamed:  # noqa: N802 - as PySpark calls it
        self.sinks.append(sink)
        return self

    def realtime(self, rows: object, sink: Sink, **_: object) -> Streamed:
        return self.foreachBatch(sink)

    def __getattr__(self, name: str) -> Streamed:
        return self

    def __call__(self, *_: object, **__: object) -> Streamed:
        return self


def makes_a_frame(value: object) -> bool:
    """Whether it is a function that gives a data frame, for which Spark's JVM is needed."""
    return inspect.isfunction(value) and inspect.signature(value).return_annotation == DataFrame.__name__


def sinks_of(job: JobDescription, monkeypatch: pytest.MonkeyPatch) -> list[Sink]:
    """Those of all queries that the job starts."""
    program = importlib.import_module(job.module if job.runs else f"{job.module}.__main__")
    streamed = Streamed()
    monkeypatch.setattr(logs, "configure", lambda level: None)  # those of this process stay
    monkeypatch.setattr(queryable, "realtime", streamed.realtime)
    # The JVM reads the schemas of a processor's own variables.
    monkeypatch.setattr(StructType, "fromDDL", lambda ddl: StructType())
    for module in (program, importlib.import_module(f"jobs.{job.name}.pipeline")):
        for name, value in list(vars(module).items()):
            if name in ("session", "DeadLetters") or makes_a_frame(value):
                monkeypatch.setattr(module, name, streamed)
    spec = job.spec(Path("here"), Path("here/checkpoint"), "", {})
    program.start({**spec.job_environ, **OF_KAFKA})
    return streamed.sinks


@pytest.mark.parametrize("job", [*map(described, job_names()), REAL_TIME], ids=lambda job: job.module)
def test_a_description_names_the_states_that_the_queries_of_the_job_make(
    job: JobDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [part.declaration.state for sink in sinks_of(job, monkeypatch) for part in sink.parts]
    assert sorted(made) == list(job.states)
