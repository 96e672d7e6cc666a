"""What a job is doing before its first answer: by what its process has said, and by its checkpoint."""

from __future__ import annotations

from keyhole.demo.batch_logs import BatchLogs

# In the order in which they come: what Spark, and Keyhole's part of a job, say.
_STEPS = (
    ("Using Spark's default log4j profile", "Spark's JVM starts"),
    ("Setting default log level", "Spark's JVM is up, its session starts"),
    ('"message": "started job ', "Spark's session is up, its queries start"),
    ("ResolveWriteToStream", "its queries have started, their first batches begin"),
)
_FIRST = "its process starts"


def step(said: str, batches: BatchLogs) -> str:
    """How far the start is, in words for a person.

    Args:
        said: All that the job's process has printed.
        batches: Of the query that is waited for.
    """
    batch = batches.begun()
    try:
        records = sum(batches.ends(batch).values()) if batch >= 0 else 0
    except (OSError, ValueError):  # it is being written, or was dropped
        records = 0
    if batch == 0 and records:
        return f"its first batch runs: {records:,} records"
    if batch >= 0:
        return f"its batch {batch} runs" if batch else "its first batch runs"
    return next((what for mark, what in reversed(_STEPS) if mark in said), _FIRST)
