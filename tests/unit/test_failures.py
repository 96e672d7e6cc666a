"""Of a process that has failed, the line that says why is found, and its log stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyhole.local.failures import reason, root_cause, tell

OVERFLOW = (
    "java.lang.StackOverflowError\n" + "\tat java.base/java.util.regex.Pattern$Loop.match(Pattern.java:5021)\n" * 1_000
)
OURS = """\
26/11/25 10:00:00 ERROR MicroBatchExecution: Query sensors [id = 1, runId = 2] terminated with error
py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "clientserver.py", line 643, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
keyhole.errors.InvalidConfiguration: query 'sensors' has no checkpoint location: give it one

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
"""
COMMIT = """\
26/11/25 10:00:00 WARN TaskSetManager: Lost task 0.0 in stage 3.0 (TID 4)
org.apache.spark.SparkException: [CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT] Error writing state files. Cannot commit.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.failedToCommitStateFileError(QueryExecutionErrors.scala:2400)
Caused by: org.rocksdb.RocksDBException: No space left on device
\tat org.rocksdb.RocksDB.flush(Native Method)
\t... 20 more
Traceback (most recent call last):
  File "running.py", line 160, in _until_its_end
pyspark.errors.exceptions.captured.StreamingQueryException: [STREAM_FAILED] Query terminated with exception: Job aborted
"""
SCHEMA = """\
26/11/30 10:00:00 ERROR MicroBatchExecution: Query totals [id = 1, runId = 2] terminated with error
org.apache.spark.sql.execution.streaming.state.StateStoreValueSchemaNotCompatible: \
[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match existing state value schema.
Please check number and type of fields.
\tat org.apache.spark.sql.execution.streaming.state.SchemaHelper$.check(SchemaHelper.scala:240)
Traceback (most recent call last):
  File "job.py", line 31, in <module>
pyspark.errors.exceptions.captured.StreamingQueryException: [STREAM_FAILED] Query [id = 1, runId = 2] terminated
Please check number and type of fields.
=== Streaming Query ===
Identifier: totals [id = 1, runId = 2]

Current State: ACTIVE
Thread State: RUNNABLE

Logical Plan:
~WriteToMicroBatchDataSourceV1 ForeachBatchSink, 1, [queryName=totals], Update
+- ~Aggregate [customer#0], [customer#0, count(1) AS orders#3L]
   +- ~StreamingExecutionRelation FileStreamSource[file:/shop/data], [customer#0], name=<Unassigned>

"""
PYTHON = """\
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 10, in main
ZeroDivisionError: division by zero

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:581)
"""


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (OURS, "query 'sensors' has no checkpoint location: give it one"),
        (OURS + OVERFLOW, "query 'sensors' has no checkpoint location: give it one"),
        (COMMIT, "org.rocksdb.RocksDBException: No space left on device"),
        (COMMIT.replace("Caused by: ", "Suppressed: "), "[CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT] Error"),
        (SCHEMA, "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match"),
        (PYTHON, "ZeroDivisionError: division by zero"),
        (PYTHON + OVERFLOW, "ZeroDivisionError: division by zero"),
        ("a job: the sensor is null\n\n", "a job: the sensor is null"),
        ("state-server: the port 7410 is taken\n  File x\n", "state-server: the port 7410 is taken"),
        (
            "java.lang.OutOfMemoryError: Java heap space\n\tat x.Y(Z.java:1)\n",
            "java.lang.OutOfMemoryError: Java heap space",
        ),
        (OVERFLOW, ""),
        ("", ""),
    ],
)
def test_the_line_that_says_why_is_found_under_stack_traces(output: str, why: str) -> None:
    found = root_cause(output)
    assert why in found
    assert "\n" not in found
    assert bool(found) == bool(why)


def test_a_line_of_any_length_is_told_in_part() -> None:
    assert len(root_cause("ValueError: " + "x" * 100_000)) == 1_000


def test_the_log_of_what_has_failed_stays_and_of_old_ones_only_the_last(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    for number in range(15):
        directory = tmp_path / f"keyhole-{number}"
        directory.mkdir()
        (directory / "job.log").write_text(f"a job: of run {number}\n")
        said = tell("job ended with exit code 1", 1, f"a job: of run {number}\n", directory / "job.log", kept)
        assert said.startswith(f"job ended with exit code 1 (a job: of run {number})\n")
        assert str(kept / f"keyhole-{number}-job.log") in said
        assert (kept / f"keyhole-{number}-job.log").read_text() == f"a job: of run {number}\n"
    assert len(list(kept.iterdir())) == 10


def test_what_a_process_said_before_a_signal_has_ended_it_is_no_reason(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("all is well\n")
    said = tell("job ended with exit code -9", -9, "all is well\n", tmp_path / "job.log", tmp_path / "kept")
    assert said.startswith("job ended with exit code -9\n")
    assert reason("all is well\n", -9) == ""
    assert reason("no such topic\n", 1) == " (no such topic)"


def test_where_it_can_not_be_kept_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("gone")
    (tmp_path / "kept").write_text("no folder")
    assert "could not be kept" in tell("job ended", None, "gone", tmp_path / "job.log", tmp_path / "kept")
