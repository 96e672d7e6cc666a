"""A real-time query that runs, with the feed run that is held beside it: both end together, with the reason."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, cast

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from keyhole.clock import Clock
from keyhole.errors import Fenced, KafkaUnreachable, KeyholeError, ValueMismatch

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_TASKS_SECONDS, _TASKS_LOOK_SECONDS = 20, 0.05

# The first error that Spark names, if SQL's class of it is that of data: of casts, divisions, places in arrays.
_OF_DATA = re.compile(r"\[(?!STREAM_FAILED)([A-Z][A-Z0-9_.]+)\][^\[]*?SQLSTATE: 22[0-9A-Z]{3}\b")


# Kafka's client says so where no broker answers: asked for the source's offsets, it is asked a few times.
_OF_KAFKA = re.compile(r"org\.apache\.kafka\.common\.errors\.(TimeoutException|DisconnectException)\b")


class RunningQuery(Protocol):
    """What is needed of Spark's StreamingQuery."""

    @property
    def isActive(self) -> bool: ...  # noqa: N802 - Spark's name

    def stop(self) -> None: ...

    def awaitTermination(self, timeout: int | None = None) -> bool | None: ...  # noqa: N802 - Spark's name


class HeldRun(Protocol):
    """What is needed of a FeedRun."""

    @property
    def fenced(self) -> Fenced | None: ...

    @property
    def lost(self) -> KafkaUnreachable | None: ...

    def fenced_by(self) -> Fenced | None: ...

    def close(self) -> None: ...


class RealTimeQuery:
    """What `queryable.realtime` returns: a running query, which feeds a state. Any thread.

    Servers keep what they own after its end, and go on answering; the next start goes on at Spark's last commit.

    Args:
        query: Spark's.
        run: Has started; closed when the query has ended.
        look: Writes the boundary of a batch that was committed since, if there is one. Called twice a second.
        tasks: How many tasks of the query run.
    """

    def __init__(
        self, query: RunningQuery, run: HeldRun, look: Callable[[], None], tasks: Callable[[], int], clock: Clock
    ) -> None:
        self._query = query
        self._run = run
        self._look = look
        self._tasks = tasks
        self._clock = clock
        self._stopped = threading.Event()
        self._ended = threading.Event()
        self._failure: KeyholeError | None = None
        self._warned: str | None = None
        self._thread = threading.Thread(target=self._hold, name="keyhole-real-time", daemon=True)
        self._thread.start()

    @property
    def query(self) -> StreamingQuery:
        """Spark's query: for its progress."""
        return cast("StreamingQuery", self._query)

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """Whether the query and its run go on."""
        return not self._ended.is_set()

    @property
    def failure(self) -> KeyholeError | None:
        """Why Keyhole has stopped it; None: it has not.

        A newer run has the state, a topic was made anew, or Spark has too few cores for the partitions.
        """
        return self._failure

    def stop(self) -> None:
        """Ends it, in mid-batch: what was sent counts, and is read again by the next start, which changes nothing.

        Blocks until the query, its tasks and the run have ended: no row is sent any more. Tasks that Spark can't end
        are waited for 20 s. Raises what Spark raises where it can't stop the query.
        """
        self._stopped.set()
        try:
            self._query.stop()
        finally:
            self._ended.wait()

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802 - Spark's name
        """Blocks until it has ended, or that many seconds.

        Returns:
            Whether it has ended.

        Raises:
            KeyholeError: `failure`.
            ValueMismatch: Spark can't compute what the query makes of a record.
            KafkaUnreachable: Kafka was away when a batch ended, for longer than Spark waits; or for so long that the
                run can't know what is on record. Start it again.
            StreamingQueryException: What else has ended the query in Spark.
        """
        if not self._ended.wait(timeout):
            return False
        if self._failure is not None:
            raise self._failure
        try:
            self._query.awaitTermination()
        except StreamingQueryException as error:
            if (ours := not_computed(str(error)) or kafka_away(str(error))) is None:
                raise
            raise ours from error
        return True

    def _hold(self) -> None:
        try:
            while not self._stopped.is_set() and self._is_active():
                self._step()
                self._clock.wait(self._stopped, _LOOK_SECONDS)
            # The next start would write it, too.
            with suppress(Exception):
                if self._failure is None:
                    self._look()
        finally:
            self._end()

    def _step(self) -> None:
        if (lost := self._run.lost) is not None:
            self._fail(lost)
            return
        try:
            if self._run.fenced is not None:
                raise self._run.fenced_by() or self._run.fenced
            self._look()
        except KafkaUnreachable as error:
            # Boundaries bound memory alone; Spark's own sink decides how long it bears that.
            self._warn(error.message)
        except KeyholeError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - of Spark, of Java's gateway, of a file system
            # As long as the query goes on, its run does: a thread that ended here would leave it without owners.
            if self._is_active():
                self._warn(f"{type(error).__name__}: {error}")
        else:
            self._warned = None

    def _fail(self, error: KeyholeError) -> None:
        self._failure = error
        _log.error("the real-time query is stopped", exc_info=error)
        self._stopped.set()
        # One that can't be stopped sends on: its rows count once, and its run says nothing any more.
        with suppress(Exception):
            self._query.stop()

    def _warn(self, why: str) -> None:
        """Once, as long as it stays the same."""
        if why != self._warned:
            _log.warning("no boundary is written: it is tried again", extra={"why": why})
        self._warned = why

    def _await_tasks(self) -> None:
        """Spark says that a query has ended before its tasks have: what they still send, the next start would miss."""
        ended: bool | None = True
        with suppress(Exception):  # why it has ended is for who awaits it
            ended = self._query.awaitTermination(_TASKS_SECONDS)
        until = self._clock.monotonic() + (_TASKS_SECONDS if ended else 0)
        # Spark hears of a job that has just begun a moment later: none is running if none was twice.
        left, before = self._tasks(), 1
        while (left or before) and self._clock.monotonic() < until:
            self._clock.sleep(_TASKS_LOOK_SECONDS)
            left, before = self._tasks(), left
        if left:
            _log.warning("tasks of an ended query still run: what they send counts once", extra={"tasks": left})

    def _end(self) -> None:
        try:
            self._await_tasks()
        finally:
            self._close()

    def _close(self) -> None:
        try:
            self._run.close()
        except Exception:  # noqa: BLE001 - who waits for the end must not wait for ever
            _log.exception("the run of a real-time query has not ended in order")
        finally:
            self._ended.set()

    def _is_active(self) -> bool:
        try:
            return bool(self._query.isActive)
        except Exception:  # noqa: BLE001 - Spark is stopping, or gone
            return False


def not_computed(text: str) -> ValueMismatch | None:
    """What to raise where a query has ended because of what is in a record; None: it has ended otherwise.

    Args:
        text: Of Spark's error. What it tells of the record is not told again.
    """
    if (found := _OF_DATA.search(text)) is None:
        return None
    return ValueMismatch(
        f"Spark can't compute what the query makes of a record ({found[1]}), and ends at it, as each start would. Use "
        "try_cast, try_divide and the like for what a record may have wrong: they make it null, and a row with a null "
        "in its key is a dead letter. Then start the query with the checkpoint that it has",
        condition=found[1],
    )


def kafka_away(text: str) -> KafkaUnreachable | None:
    """What to raise where a query has ended because Kafka did not answer Spark; None: it has ended otherwise.

    Args:
        text: Of Spark's error.
    """
    if (found := _OF_KAFKA.search(text)) is None:
        return None
    return KafkaUnreachable(
        f"Kafka was away for longer than Spark waits for it between batches ({found[1]}), and Spark has ended the "
        "query. Nothing is lost: start it again with the checkpoint that it has, and let a supervisor do so. A source "
        "with a higher fetchOffset.numRetries waits for longer"
    )
