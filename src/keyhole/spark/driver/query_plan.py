"""What the plan of a streaming query says, as Spark has it for one of its batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from py4j.java_gateway import JavaObject

from keyhole.spark.driver.micro_batch import MicroBatch

_STATEFUL = "org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperator"
_WATERMARKS = "org.apache.spark.sql.execution.streaming.operators.stateful.EventTimeWatermarkExec"


@dataclass(frozen=True)
class QueryPlan:
    """What is the same in every batch of a run.

    Attributes:
        operators: The class names, without packages, of the operators that keep Spark's own state.
        watermarked: The query calls withWatermark somewhere.
    """

    operators: frozenset[str]
    watermarked: bool


def plan_of(batch: MicroBatch) -> QueryPlan:
    """Of the batch's query. Walks the whole plan, a few milliseconds: once per run is enough."""
    return QueryPlan(state_operators(batch.execution), has_watermark(batch.execution))


def state_operators(execution: JavaObject) -> frozenset[str]:
    """QueryPlan.operators.

    Args:
        execution: The IncrementalExecution of a micro-batch. A plan that is adaptive has none: Spark 4.2 makes only
            stateless ones so, and then hides what is inside.
    """
    plan = execution.executedPlan()
    stateful = plan.getClass().getClassLoader().loadClass(_STATEFUL)
    return frozenset(str(node.getClass().getSimpleName()) for node in _nodes(plan) if stateful.isInstance(node))


def has_watermark(execution: JavaObject) -> bool:
    """QueryPlan.watermarked.

    Args:
        execution: The IncrementalExecution of a micro-batch. Its logical plan: a physical one may hide what is inside.
    """
    return any(node.getClass().getSimpleName() == "EventTimeWatermark" for node in _nodes(execution.analyzed()))


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
