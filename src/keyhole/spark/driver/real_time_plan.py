"""What Spark's real-time mode can't do of a streaming query, found before the query starts.

    events.groupBy("k").count()    Unsupported: ... groupBy ...: a state of kind reducing adds rows up

Spark itself says so in the first batch: in the background, after `start()` has returned.
"""

from __future__ import annotations

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from keyhole.errors import Unsupported
from keyhole.spark.driver.changing_values import changing
from keyhole.spark.driver.data_frames import classic
from keyhole.spark.driver.plan_nodes import each, kind_of, nodes

_KEPT_BY_THE_STATE = "the state keeps what there is of a key: "
_BATCHES = "use a job by micro-batches (queryable.value and the like)"
_SHUFFLE = "leave it out: Kafka takes each row to its key's partition"
_ORDER = f"leave it out: rows count in the order of their topic; else {_BATCHES}"

_INSTEAD = {
    "Aggregate": ("groupBy and agg", f"{_KEPT_BY_THE_STATE}kind reducing adds rows up; else {_BATCHES}"),
    "Deduplicate": ("dropDuplicates", f"{_KEPT_BY_THE_STATE}of a value the last row counts; else {_BATCHES}"),
    "DeduplicateWithinWatermark": ("dropDuplicatesWithinWatermark", _BATCHES),
    "Distinct": ("distinct", f"{_KEPT_BY_THE_STATE}of a value the last row counts; else {_BATCHES}"),
    "Repartition": ("repartition and coalesce", _SHUFFLE),
    "RepartitionByExpression": ("repartition", _SHUFFLE),
    "RebalancePartitions": ("repartition", _SHUFFLE),
    "Sort": ("orderBy", _ORDER),
    "GlobalLimit": ("limit", _BATCHES),
    "LocalLimit": ("limit", _BATCHES),
}
_PYTHON = "Python ({}) in the query", f"use SQL's functions (pyspark.sql.functions); else {_BATCHES}"
_SOURCE = "a source of format {}", f"read from Kafka; else {_BATCHES}"
_STREAMS = "a join of two streams", f"let each feed a state of its own, and join as they are read; else {_BATCHES}"
_CHANGING = "{}, which makes other rows of the same records when they are read again", f"{{}}; else {_BATCHES}"
_NO_BROADCAST = "a join without broadcast", "join with broadcast(the table), by equality"

_ALLOWED = frozenset(
    {
        # With what is merely a name or a hint.
        *("Project", "Filter", "Generate", "Expand", "Union", "EventTimeWatermark", "CollectMetrics"),
        *("SubqueryAlias", "View", "ResolvedHint", "UnresolvedHint", "Join"),
        *("DeserializeToObject", "SerializeFromObject", "MapElements", "MapPartitions", "AppendColumns"),
        *("StreamingRelationV2", "LogicalRelation", "LocalRelation", "Range", "OneRowRelation", "LogicalRDD"),
    }
)


def check_real_time(rows: DataFrame) -> None:
    """Whether the query has only what real-time mode runs: projections, filters, explode, unions, broadcast joins.

    Spark looks again, at the physical plan. It may refuse what passes here, such as a table in a format of its own.

    Args:
        rows: Of a streaming query that reads Kafka. Not started, and not changed. Driver only; some 10 ms.

    Raises:
        Unsupported: Names what can't be, and what to use instead. Or the rows are no stream, or of Spark Connect.
    """
    plan = classic(rows)._jdf.queryExecution().analyzed()
    if not plan.isStreaming():
        raise _refused("rows that are no stream", "read them by readStream from Kafka")
    for node in nodes(plan):
        if (problem := _problem(node)) is not None:
            raise _refused(*problem)


def _refused(what: str, instead: str) -> Unsupported:
    return Unsupported(f"Spark's real-time mode has no {what.removeprefix('a ')}: {instead}")


def _problem(node: JavaObject) -> tuple[str, str] | None:
    """What can't be of this node, and what to use instead; None: it can be."""
    name = kind_of(node)
    # First: a Python function in a filter is no filter's fault.
    for part in each(node.expressions()):
        if (python := next(filter(_is_python, nodes(part)), None)) is not None:
            return _PYTHON[0].format(python.name()), _PYTHON[1]
        if (found := changing(part)) is not None:
            return _CHANGING[0].format(found.name), _CHANGING[1].format(found.instead)
    if name == "StreamingRelationV2" and node.sourceName() != "kafka":
        return _SOURCE[0].format(node.sourceName()), _SOURCE[1]
    if name == "Join":
        return _join_problem(node)
    if name in _ALLOWED:
        return None
    if "Python" in name or "Pandas" in name or "Arrow" in name:
        return _PYTHON[0].format(name), _PYTHON[1]
    return _INSTEAD.get(name, (name, _BATCHES))


def _is_python(expression: JavaObject) -> bool:
    return kind_of(expression).startswith("Python")


def _join_problem(join: JavaObject) -> tuple[str, str] | None:
    sides = [join.left(), join.right()]
    tables = [side for side in sides if not side.isStreaming()]
    if not tables:
        return _STREAMS
    condition = join.condition()
    equal = condition.isDefined() and any(
        kind_of(node) in ("EqualTo", "EqualNullSafe") for node in nodes(condition.get())
    )
    return None if equal and any(map(_is_broadcast, tables)) else _NO_BROADCAST


def _is_broadcast(table: JavaObject) -> bool:
    """By a hint: whether Spark does so by itself may change from run to run, with the table's size."""
    while kind_of(table) in ("SubqueryAlias", "Project", "Filter", "View"):
        table = table.children().apply(0)
    return kind_of(table) == "ResolvedHint" and "broadcast" in str(table.hints().toString())
