"""Hears which streaming queries are started in a Spark session: each start, before `start()` returns."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class QueryStart:
    """One start of a streaming query.

    Attributes:
        query_id: Stays the same as long as the checkpoint does.
        run_id: New with every start of the query.
        name: Spark's of the query; None: it has none.
    """

    query_id: str
    run_id: str
    name: str | None

    def alive(self) -> bool:
        """Whether it still runs. Any thread."""
        try:
            # What a context's sessions share. That of the query is not kept: it could be collected on neither side.
            jvm, session = SparkContext._jvm, SparkSession._instantiatedSession
            assert jvm is not None
            assert session is not None
            uuid = jvm.java.util.UUID.fromString(self.query_id)
            query = session._jsparkSession.sharedState().activeStreamingQueries().get(uuid)
            return query is not None and query.runId().toString() == self.run_id and bool(query.isActive())
        except (Py4JError, OSError, AssertionError):
            return False  # Spark is stopping, or has


Heard = Callable[[QueryStart], object]
"""Must not block: `start()` waits for it."""


class StartListener:
    """Of one session. Called on threads of Py4J's.

    Not pyspark's own class, which asks the JVM for every figure of each batch: of batches this asks nothing.
    """

    def __init__(self, heard: Heard) -> None:
        self._heard = heard

    def onQueryStarted(self, event: JavaObject) -> None:  # noqa: N802 - Spark's name
        """A query of the session starts. Spark waits for this, and for no other event."""
        try:
            name = event.name()
            query_id, run_id = event.id().toString(), event.runId().toString()
            self._heard(QueryStart(query_id, run_id, None if name is None else str(name)))
        except Exception:  # noqa: BLE001 - the top of a callback: Spark would only log a Java trace
            _log.exception("that a query was started could not be read")

    def onQueryProgress(self, event: JavaObject) -> None:  # noqa: N802 - Spark's name
        """Part of the interface that Spark calls."""

    def onQueryIdle(self, event: JavaObject) -> None:  # noqa: N802 - Spark's name
        """Part of the interface that Spark calls."""

    def onQueryTerminated(self, event: JavaObject) -> None:  # noqa: N802 - Spark's name
        """Part of the interface that Spark calls. It may be late, or never come: see QueryStart.alive."""

    class Java:
        """Names to Py4J the interface of Spark that this object implements."""

        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


class _Sessions:
    """The sessions whose starts are heard, by Spark's ids of them: each has one listener, until it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: set[str] = set()

    def hear(self, session: JavaObject, heard: Heard) -> None:
        name = str(session.sessionUUID())
        # Whoever comes second starts no query before the session is heard.
        with self._lock:
            if name not in self._ids:
                self._listen(session, heard)
                self._ids.add(name)

    @staticmethod
    def _listen(session: JavaObject, heard: Heard) -> None:
        jvm = SparkContext._jvm
        assert jvm is not None
        ensure_callback_server_started(SparkContext._gateway)  # type: ignore[no-untyped-call]
        wrapper = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(StartListener(heard))
        session.streams().addListener(wrapper)


_SESSIONS = _Sessions()


def hear_starts(heard: Heard, session: JavaObject | None = None) -> None:
    """From now on `heard` is called with each start in the session. Idempotent: of a session one is called.

    Raises nothing: where a session can't be heard, as one of Spark Connect, the log says so.

    Args:
        session: The JVM's; default: the active one of this process, if there is any.
    """
    try:
        session = session if session is not None else _active()
        if session is not None:
            _SESSIONS.hear(session, heard)
    except Exception:  # noqa: BLE001 - whoever makes a sink must not fail of it: an idle query waits for its first batch
        _log.info("the starts of a session's queries can't be heard", exc_info=True)


def _active() -> JavaObject | None:
    if SparkContext._active_spark_context is None:
        return None
    session = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    return session._jsparkSession if session is not None else None
