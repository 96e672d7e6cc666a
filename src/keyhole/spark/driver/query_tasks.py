"""The tasks of a streaming query, which go on for a moment when Spark says that the query has ended."""

from __future__ import annotations

import logging

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)


class QueryTasks:
    """Of one query. Any thread. Call it: how many of its tasks run; 0 where Spark has gone. Blocks for the JVM."""

    def __init__(self, context: SparkContext, query: StreamingQuery) -> None:
        self._tracker = context.statusTracker()
        # Spark runs all jobs of a query in the group of this name.
        self._group = str(query.runId)

    def __call__(self) -> int:
        try:
            return self._running()
        except Exception:  # noqa: BLE001 - Py4J says in many ways that the JVM has gone, and with it all tasks
            _log.info("Spark does not tell of a query's tasks: they count as ended", exc_info=True)
            return 0

    def _running(self) -> int:
        # A batch begins when the tasks of the one before have ended.
        job = max(self._tracker.getJobIdsForGroup(self._group), default=None)
        found = None if job is None else self._tracker.getJobInfo(job)
        if found is None:
            return 0
        stages = [self._tracker.getStageInfo(stage) for stage in found.stageIds]
        running = sum(stage.numActiveTasks for stage in stages if stage is not None)
        # As long as a job runs, the tracker is late: it may not know of tasks that began a moment after their stage.
        return max(running, 1) if found.status == "RUNNING" else running
