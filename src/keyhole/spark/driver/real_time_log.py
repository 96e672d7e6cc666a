"""Spark's logs of a query that runs, and the mark in its checkpoint that says where its rows went."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from keyhole.errors import ChangelogRecreated, CheckpointMismatch
from keyhole.hints import ready
from keyhole.spark.driver.checkpoint_files import CheckpointFiles, checkpoint_files
from keyhole.spark.driver.jvm import java_class

_COMMITS, _SOURCES, _FOLDER, _NAME = "commits", "sources", "keyhole", "updates"


class SparkLog:
    """CheckpointLogs (keyhole.spark.write_path.batch_boundaries) of a query that was started. One thread."""

    def __init__(self, session: SparkSession, query: StreamingQuery) -> None:
        self._stream = query._jsq.streamingQuery()
        self._session = session

    def last_committed(self) -> int | None:
        latest = self._stream.commitLog().getLatestBatchId()
        return int(latest.get()) if latest.isDefined() else None

    def offsets(self, batch: int) -> str | None:
        log = self._stream.offsetLog()
        entry = log.get(batch)
        if not entry.isDefined():
            return None
        text = java_class(self._session, "java.io.ByteArrayOutputStream")()
        log.serialize(entry.get(), text)
        return str(text.toString("UTF-8"))


@ready
class CheckpointMark(msgspec.Struct, frozen=True):
    """Where the rows of a checkpoint's committed batches went: they are never sent again.

    Attributes:
        sources: Under which the rows of each branch stand in updates, in the query's order.
        updates_id: Kafka's id of the updates topic.
    """

    sources: tuple[str, ...]
    updates_id: str


class CheckpointMarks:
    """The mark of one checkpoint. Driver only; blocks. Raises what the file system raises.

    Args:
        folder: The checkpoint's, as Spark knows it.
    """

    def __init__(self, session: SparkSession, folder: str) -> None:
        place = folder.rstrip("/")
        self._commits = checkpoint_files(session, f"{place}/{_COMMITS}")
        # Where each source began, which Spark writes in the first batch: also one that never ends.
        self._sources = checkpoint_files(session, f"{place}/{_SOURCES}")
        self._files = checkpoint_files(session, f"{place}/{_FOLDER}")

    def check(self, sources: Sequence[str], updates_id: str | None = None) -> bool:
        """Whether a query of these sources goes on from the checkpoint; False: it begins there.

        Args:
            updates_id: Of the state's updates topic; empty: it has none yet; None: it is not known.

        Raises:
            CheckpointMismatch, ChangelogRecreated: It may not: see `check_mark`.
        """
        begun = self._begun()
        check_mark(begun, self._read(), sources, updates_id if committed(self._commits) else None)
        return begun

    def settle(self, mark: CheckpointMark) -> None:
        """Makes it the checkpoint's mark where no batch is committed yet; else that must be it: see `check_mark`."""
        found = self._read()
        self.check(mark.sources, mark.updates_id)
        if not committed(self._commits) and found != mark:
            self._files.delete(_NAME)
            self._files.create(_NAME, msgspec.json.encode(mark))

    def _begun(self) -> bool:
        return committed(self._commits) or bool(self._sources.names())

    def _read(self) -> CheckpointMark | None:
        content = self._files.read(_NAME)
        return None if content is None else msgspec.json.decode(content, type=CheckpointMark)


def committed(commits: CheckpointFiles) -> bool:
    """Whether Spark has committed a batch there. Its files are called by the batches' numbers."""
    return any(name.isdecimal() for name in commits.names())


def check_mark(begun: bool, mark: CheckpointMark | None, sources: Sequence[str], updates_id: str | None) -> None:
    """Refuses a checkpoint whose committed rows are not where this query's owners look for them. Pure.

    Args:
        begun: It has a committed batch, or says at which offsets its first one began.
        mark: That it has.
        updates_id: None: it is not known yet, or no batch is committed: all rows are sent again.

    Raises:
        CheckpointMismatch: Its batches were of no real-time query, or of other sources.
        ChangelogRecreated: A source or the updates topic was made anew since.
    """
    if not begun:
        return
    if mark is None:
        raise CheckpointMismatch(
            "the checkpoint is another query's, whose rows are in no updates topic: give the real-time query a "
            "checkpoint of its own"
        )
    if tuple(sources) != mark.sources:
        raise ChangelogRecreated(
            f"the checkpoint is of the sources {', '.join(mark.sources)}, and the query has "
            f"{', '.join(sources)}: a topic was made anew, or the names or the order of the query's rows are others. "
            "Give the rows the names that they had, in that order. For a topic that was made anew start with a new "
            "checkpoint, which reads what is in it now",
        )
    if updates_id is not None and updates_id != mark.updates_id:
        raise ChangelogRecreated(
            f"the checkpoint's rows went to an updates topic that is gone (its id was {mark.updates_id}, and there is "
            f"{updates_id or 'none'} now): start with a new checkpoint, which reads the topic from its start",
            topic_id=updates_id,
        )
