"""What Spark knows of the micro-batch that foreachBatch is running, read once."""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass, replace

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from keyhole.errors import InvalidConfiguration
from keyhole.spark.driver.data_frames import classic
from keyhole.spark.driver.jvm import java_class

# Spark sets it on the thread that runs a query, which is also the one that calls foreachBatch back.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class OutputMode(enum.StrEnum):
    """How a query gives its result out: new rows, changed rows, or the whole of it. The values are Spark's names."""

    APPEND = "Append"
    UPDATE = "Update"
    COMPLETE = "Complete"


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch of a running query.

    Attributes:
        number: Spark's batch id.
        query_id: Stays the same as long as the checkpoint does.
        run_id: New with every start of the query.
        name: The query's name; None: it has none.
        offsets: The source offsets up to which the batch reads, as the checkpoint holds them: the same text when the
            batch is run again.
        log_entry: The whole entry of the offset log, as it stands in the checkpoint's file.
        watermark_ms: The event-time watermark before the batch, in milliseconds since 1970; 0: none.
        location: Of the query's checkpoint, as Spark has it: with its scheme.
        frame: The rows, as foreachBatch gave them, or made of them.
        query: The JVM's StreamExecution.
        execution: The JVM's IncrementalExecution of this batch.
    """

    number: int
    query_id: str
    run_id: str
    name: str | None
    output_mode: OutputMode
    offsets: str
    log_entry: str
    watermark_ms: int
    location: str
    frame: ClassicDataFrame
    query: JavaObject
    execution: JavaObject


class _LastOfThread(threading.local):
    """The batch that a thread has asked for last: the sink asks for it, and so does each broadcast state it reads."""

    which: tuple[str, str] | None = None
    batch: MicroBatch


_known = _LastOfThread()


def current(data: DataFrame, batch_id: int | None = None) -> MicroBatch:
    """The batch that this thread is running. For the thread, and the time, of a foreachBatch call only.

    Spark's JVM is asked once for each batch, some two dozen questions.

    Args:
        data: As foreachBatch gave it, or made of that.
        batch_id: As Spark gave it, to be checked.

    Raises:
        Unsupported: The data frame belongs to Spark Connect.
        InvalidConfiguration: There is none, or it has another number.
    """
    frame = classic(data)
    session = frame.sparkSession
    context = session.sparkContext
    query_id, running = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if query_id is None or running is None or (batch_id is not None and running != str(batch_id)):
        raise InvalidConfiguration(
            "called outside of a streaming query; give the sink to writeStream.foreachBatch(...), or call it there, on "
            "the thread that Spark calls, with the data frame and the batch id that Spark gave"
        )
    # A run runs each batch once; another run of the query begins when the one before has ended.
    if _known.which != (query_id, running) or not _known.batch.query.isActive():
        _known.batch = _asked(frame, query_id, running)
        _known.which = query_id, running
    return replace(_known.batch, frame=frame)


def _asked(frame: ClassicDataFrame, query_id: str, running: str) -> MicroBatch:
    """What Spark's JVM says of a batch that is running."""
    session = frame.sparkSession
    uuid, text = java_class(session, "java.util.UUID"), java_class(session, "java.io.ByteArrayOutputStream")()
    # The session of the batch is a copy made for the query, whose own list of queries is empty; this one is shared.
    query = session._jsparkSession.sharedState().activeStreamingQueries().get(uuid.fromString(query_id))
    execution = query.lastExecution()
    name = query.name()
    # Written before the batch begins. As text it is the sources' offsets alone: without the line that holds the time at
    # which the batch was first planned.
    log = query.offsetLog()
    entry = log.get(int(running)).get()
    log.serialize(entry, text)
    return MicroBatch(
        number=int(running),
        query_id=query.id().toString(),
        run_id=query.runId().toString(),
        name=str(name) if name is not None else None,
        output_mode=OutputMode(query.outputMode().toString()),
        offsets=entry.toString(),
        log_entry=str(text.toString("UTF-8")),
        watermark_ms=int(execution.offsetSeqMetadata().batchWatermarkMs()),
        location=str(query.resolvedCheckpointRoot()),
        frame=frame,
        query=query,
        execution=execution,
    )
