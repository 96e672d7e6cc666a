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
_LONGEST = max(len(mark) for mark, _ in _STEPS)


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
    return StartSteps().take(said)


class StartSteps:
    """The same by what is printed alone, piece by piece, so that no piece is read twice."""

    def __init__(self) -> None:
        self._step = _FIRST
        self._later = list(_STEPS)
        self._end = ""

    def take(self, said: str) -> str:
        """How far it is. `said`: what was printed since the last time."""
        if self._later:
            whole = self._end + said
            for number, (mark, what) in reversed(list(enumerate(self._later))):
                if mark in whole:
                    self._step, self._later = what, self._later[number + 1 :]
                    break
            # A mark may come in two pieces.
            self._end = whole[-_LONGEST:]
        return self._step
