"""What Spark knows of the micro-batch that foreachBatch is running: it gives Python only the data and a number."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from keyhole.errors import InvalidConfiguration, Unsupported
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
    query: JavaObject
    execution: JavaObject


def classic(data: DataFrame) -> ClassicDataFrame:
    """The data frame, as one whose plans can be looked into.

    Raises:
        Unsupported: It belongs to Spark Connect.
    """
    if not isinstance(data, ClassicDataFrame):
        raise Unsupported(
            "queryable states need the driver's own Spark session, and Spark Connect gives none: run the job with "
            "spark-submit, or start the session in the job's process"
        )
    return data


def current(data: ClassicDataFrame, batch_id: int | None = None) -> MicroBatch:
    """The batch that this thread is running. For the thread, and the time, of a foreachBatch call only.

    Args:
        batch_id: As Spark gave it, to be checked.

    Raises:
        InvalidConfiguration: There is none, or it has another number.
    """
    session = data.sparkSession
    context = session.sparkContext
    query_id, running = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if query_id is None or running is None or (batch_id is not None and running != str(batch_id)):
        raise InvalidConfiguration(
            "called outside of a streaming query; give the sink to writeStream.foreachBatch(...), or call it there, on "
            "the thread that Spark calls, with the data frame and the batch id that Spark gave"
        )
    # The session of the batch is a copy made for the query, whose own list of queries is empty; this one is shared.
    queries = session._jsparkSession.sharedState().activeStreamingQueries()
    query = queries.get(java_class(session, "java.util.UUID").fromString(query_id))
    execution = query.lastExecution()
    name = query.name()
    log = query.offsetLog()
    entry = log.get(int(running)).get()
    return MicroBatch(
        number=int(running),
        query_id=query.id().toString(),
        run_id=query.runId().toString(),
        name=str(name) if name is not None else None,
        output_mode=OutputMode(query.outputMode().toString()),
        # Written before the batch begins. As text it is the sources' offsets alone: without the line that holds the
        # time at which the batch was first planned.
        offsets=entry.toString(),
        log_entry=_serialized(session, log, entry),
        watermark_ms=int(execution.offsetSeqMetadata().batchWatermarkMs()),
        query=query,
        execution=execution,
    )


def _serialized(session: SparkSession, log: JavaObject, entry: JavaObject) -> str:
    stream = java_class(session, "java.io.ByteArrayOutputStream")()
    log.serialize(entry, stream)
    return str(stream.toString("UTF-8"))


def has_watermark(execution: JavaObject) -> bool:
    """Whether the query calls withWatermark anywhere.

    Args:
        execution: The IncrementalExecution of a micro-batch. Its logical plan: a physical one may hide what is inside.
    """
    return any(node.getClass().getSimpleName() == "EventTimeWatermark" for node in _nodes(execution.analyzed()))


_WATERMARKS = "org.apache.spark.sql.execution.streaming.operators.stateful.EventTimeWatermarkExec"


def next_watermark_ms(batch: MicroBatch) -> int:
    """The watermark after the batch, in milliseconds since 1970, once all its rows were computed; 0: none yet.

    As Spark computes it at the batch's end, where one stream has a watermark; of several, the lowest.
    """
    found = [
        int(stats.max()) - int(node.delayMs())
        for node in _nodes(batch.execution.executedPlan())
        if node.getClass().getName() == _WATERMARKS and (stats := node.eventTimeStats().value()).count()
    ]
    return max(batch.watermark_ms, min(found, default=0))


def _nodes(plan: JavaObject) -> Iterator[JavaObject]:
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        yield node
        children = node.children()
        waiting.extend(children.apply(index) for index in range(children.size()))


_STATEFUL = "org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperator"


def state_operators(execution: JavaObject) -> frozenset[str]:
    """The class names, without packages, of the operators that keep Spark's own state; the same in every batch.

    Walks the whole plan, a few milliseconds: once per run is enough.

    Args:
        execution: The IncrementalExecution of a micro-batch. A plan that is adaptive has none: Spark 4.2 makes only
            stateless ones so, and then hides what is inside.
    """
    plan = execution.executedPlan()
    stateful = plan.getClass().getClassLoader().loadClass(_STATEFUL)
    return frozenset(str(node.getClass().getSimpleName()) for node in _nodes(plan) if stateful.isInstance(node))
