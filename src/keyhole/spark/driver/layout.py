"""How Spark has laid a batch's rows out: which partition has which keys, as the batch's plan says.

A state's key group is pmod(murmur3(key columns), key_groups), and so is Spark's partition number of a stream grouped by
the same columns, modulo the number of partitions. So where that number divides `key_groups`, partition p holds exactly
the key groups g with g mod partitions = p, and no second shuffle is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from py4j.java_gateway import JavaObject
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from keyhole.spark.exposed import KEY_PREFIX, grouping_key
from keyhole.spark.worker.pack import keyhole_change_rows

_PLANS = "org.apache.spark.sql.catalyst.plans.physical"
_ATTRIBUTE = "org.apache.spark.sql.catalyst.expressions.AttributeReference"
_LOGICAL_RDD = "org.apache.spark.sql.execution.LogicalRDD"
_EXECUTION = "org.apache.spark.sql.execution"
_ADAPTIVE = f"{_EXECUTION}.adaptive.AdaptiveSparkPlanExec"
_CACHED = f"{_EXECUTION}.columnar.InMemoryTableScanExec"
_ROWS = f"{_EXECUTION}.RDDScanExec"
_ROW_BY_ROW = frozenset(
    f"{_EXECUTION}.{name}" for name in ("ProjectExec", "FilterExec", "WholeStageCodegenExec", "InputAdapter")
)
_MAP_IN_ARROW = f"{_EXECUTION}.python.MapInArrowExec"
_CHANGING = ("Join", "CartesianProduct", "Window")
_TRANSFORM_WITH_STATE = "TransformWithStateInPySparkExec"


@dataclass(frozen=True)
class HashLayout:
    """Partition p holds exactly the rows with pmod(murmur3(columns, in this order), partitions) = p."""

    columns: tuple[str, ...]
    partitions: int

    def has_key_groups(self, key: Sequence[str], key_groups: int) -> bool:
        """Whether each partition holds whole key groups of the key."""
        return self.columns == tuple(key) and key_groups % self.partitions == 0


class RunLayouts:
    """What `layout_of` says in the batches of one run, asked for where it may differ from batch to batch."""

    def __init__(self) -> None:
        self._of_processor: tuple[dict[int, str], HashLayout] | None = None
        self._nowhere: set[str] = set()

    def of_batch(self, batch: ClassicDataFrame, execution: JavaObject) -> HashLayout | None:
        """Of a micro-batch. A processor's operator keeps its partitioning for as long as its query runs."""
        key = grouping_key(batch.schema)
        if (
            self._of_processor is not None
            and self._of_processor[0] == key
            and _operator_of(batch, execution) is not None
        ):
            return self._of_processor[1]
        layout = layout_of(batch, execution)
        if layout is not None and all(of.startswith(KEY_PREFIX) for of in layout.columns):
            self._of_processor = key, layout
        return layout

    def of_rows(self, state: str, rows: ClassicDataFrame, execution: JavaObject) -> HashLayout | None:
        """Of a state's rows, which the job has made of a micro-batch. Once they are in no known layout it isn't asked
        for again: Spark would plan them for the answer alone. To shuffle them is right in any case.
        """
        if state in self._nowhere:
            return None
        layout = layout_of(rows, execution)
        if layout is None:
            self._nowhere.add(state)
        return layout


def layout_of(batch: ClassicDataFrame, execution: JavaObject) -> HashLayout | None:
    """How Spark has hashed the batch's rows to partitions, in the batch's own column names; None: it hasn't, or by
    something else.

    Of what a queryable processor gives out, in the names of the key that is packed there, with KEY_PREFIX.

    Args:
        execution: The IncrementalExecution of the micro-batch.
    """
    query = batch._jdf.queryExecution()
    names = batch.columns
    whole = _is_whole_batch(query.logical(), execution)
    if whole:
        # foreachBatch hands out the micro-batch's rows with its partitioning, but under the column ids of the logical
        # plan, while the partitioning still speaks of the physical plan's. The two go together by position.
        plan = execution.executedPlan()
    else:
        plan = query.executedPlan()
        if plan.getClass().getName() == _ADAPTIVE:
            return None  # says what it plans to do; may merge partitions when it runs
    ids = {attribute.exprId().id(): name for attribute, name in zip(_items(plan.output()), names, strict=True)}
    layout = _layout(plan.outputPartitioning(), ids)
    if layout is None:
        return _processor_layout(batch, execution)
    return layout if whole or not _may_change(plan) else None


def _is_whole_batch(logical: JavaObject, execution: JavaObject) -> bool:
    """Whether the data frame is the micro-batch as foreachBatch got it, with nothing done to it."""
    return bool(logical.getClass().getName() == _LOGICAL_RDD and logical.rdd().equals(execution.toRdd()))


def _processor_layout(batch: ClassicDataFrame, execution: JavaObject) -> HashLayout | None:
    """The same where the batch holds change rows of a queryable processor (keyhole.spark.processor).

    Spark's transformWithState gives out rows where it has their group, but doesn't say so: what the columns hold that a
    function gives out is not for Spark to know. The columns that hold the group's key are Keyhole's own.
    """
    operator = _operator_of(batch, execution)
    if operator is None:
        return None
    key = grouping_key(batch.schema)
    grouping = _items(operator.groupingAttributes())
    if sorted(key) != list(range(len(grouping))):
        return None
    ids = {attribute.exprId().id(): key[number] for number, attribute in enumerate(grouping)}
    return _layout(operator.left().outputPartitioning(), ids)


def _operator_of(batch: ClassicDataFrame, execution: JavaObject) -> JavaObject | None:
    """The operator that runs the processor, where all rows of the data frame are where it has given them out."""
    if not grouping_key(batch.schema) or not _stays_in_place(batch, execution):
        return None
    operator = _below(execution.executedPlan())
    return operator if operator.getClass().getSimpleName() == _TRANSFORM_WITH_STATE else None


def _stays_in_place(batch: ClassicDataFrame, execution: JavaObject) -> bool:
    """Whether each row of the data frame is still in the partition in which the micro-batch had it."""
    query = batch._jdf.queryExecution()
    if _is_whole_batch(query.logical(), execution):
        return True
    plan = _below(query.executedPlan())
    return bool(plan.getClass().getName() == _ROWS and plan.rdd().equals(execution.toRdd()))


def _below(plan: JavaObject) -> JavaObject:
    """The first operator, from the top, that does more than look at one row after the other."""
    while True:
        name = plan.getClass().getName()
        if name == _CACHED:
            plan = plan.relation().cachedPlan()
        elif name in _ROW_BY_ROW or (name == _MAP_IN_ARROW and plan.func().name() == keyhole_change_rows.__name__):
            plan = plan.children().apply(0)
        else:
            return plan


def _may_change(plan: JavaObject) -> bool:
    """Whether Spark may plan it otherwise, with other partitions, when it is asked for the rows.

    A join: by then Spark may know how few rows the batch has. A window: it is left out, and its shuffle with it, where
    nobody reads what it gives, and a state takes only its own columns. What is kept of the batch stays as it is.
    """
    name = plan.getClass().getSimpleName()
    return any(of in name for of in _CHANGING) or any(map(_may_change, _items(plan.children())))


def _layout(partitioning: JavaObject, ids: dict[int, str]) -> HashLayout | None:
    if partitioning.getClass().getName() != f"{_PLANS}.HashPartitioning":
        return None
    columns: list[str] = []
    for expression in _items(partitioning.expressions()):
        if expression.getClass().getName() != _ATTRIBUTE or expression.exprId().id() not in ids:
            return None
        columns.append(ids[expression.exprId().id()])
    return HashLayout(tuple(columns), int(partitioning.numPartitions()))


def _items(scala_seq: JavaObject) -> list[JavaObject]:
    return [scala_seq.apply(index) for index in range(scala_seq.size())]
