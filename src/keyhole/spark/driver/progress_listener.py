"""Hears what Spark reports of each batch, and keeps the figures of it: see keyhole.coordinator.progress."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from typing import ClassVar

from py4j.java_gateway import JavaObject
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started

from keyhole.coordinator.counts import SparkCounts
from keyhole.coordinator.progress import note_progress

_log = logging.getLogger(__name__)


class ProgressListener:
    """Of one run of a query. Called on a thread of Py4J's, some time after each batch; it holds up none.

    Not pyspark's own class, which asks the JVM for every figure one by one: this asks once, for all as JSON.
    """

    def __init__(self, run_id: str, counts: SparkCounts) -> None:
        self.leave: Callable[[], object] = lambda: None
        self._run_id = run_id
        self._counts = counts

    def onQueryStarted(self, event: JavaObject) -> None:  # noqa: N802 - Spark's name
        """Part of the interface that Spark calls; there is no figure to keep yet."""

    def onQueryIdle(self, event: JavaObject) -> None:  # noqa: N802 - Spark's name
        """Part of the interface that Spark calls; there is no figure to keep."""

    def onQueryTerminated(self, event: JavaObject) -> None:  # noqa: N802 - Spark's name
        """The last event of a query: nothing comes after it."""
        if event.runId().toString() == self._run_id:
            self.leave()

    def onQueryProgress(self, event: JavaObject) -> None:  # noqa: N802 - Spark's name
        """A batch has ended, of any query of the session."""
        try:
            progress = json.loads(event.progress().json())
            if progress.get("runId") == self._run_id:
                note_progress(self._counts, progress)
        except Exception:  # noqa: BLE001 - the top of a callback: Spark would only log a Java trace
            _log.exception("the progress of a batch could not be read")

    class Java:
        """Names to Py4J the interface of Spark that this object implements."""

        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


def follow_progress(query: JavaObject, run_id: str, counts: SparkCounts) -> None:
    """Keeps the figures of one run, until Spark reports that it has ended: what it reported before that is not lost.

    Args:
        query: The JVM's StreamExecution. Its own session is the one that the user started it in; the one of the batch
            is a copy of that, which hears nothing.
    """
    jvm = SparkContext._jvm
    assert jvm is not None
    # Without foreachBatch nobody else may have: Spark's JVM would call nobody.
    ensure_callback_server_started(SparkContext._gateway)  # type: ignore[no-untyped-call]
    streams = query.sparkSession().streams()
    listener = ProgressListener(run_id, counts)
    proxy = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(listener)
    listener.leave = functools.partial(streams.removeListener, proxy)
    streams.addListener(proxy)
