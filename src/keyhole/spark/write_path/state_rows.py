"""How the rows of one state are staged: which columns of them, in which partitions, in which order, by which task."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everyone who writes PySpark calls it
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from keyhole.encoding.columnar import OP, Op
from keyhole.encoding.reducers import ReducerCall, parse
from keyhole.errors import InvalidConfiguration
from keyhole.model.state import StateDescriptor, StateKind, ValueField
from keyhole.protocol.epochs import StatePlan
from keyhole.spark.declaration.batch_columns import value_names
from keyhole.spark.declaration.declared import Declaration
from keyhole.spark.declaration.value_codec import Encoding
from keyhole.spark.driver.arrow_map import map_in_arrow
from keyhole.spark.driver.data_frames import quoted, selected, sorted_within_partitions
from keyhole.spark.driver.layout import HashLayout
from keyhole.spark.driver.partitioning import by_key_group
from keyhole.spark.worker.aggregating import Aggregation
from keyhole.spark.worker.assembly import TaskState
from keyhole.spark.worker.stage import RECEIPT_SCHEMA, stage_task
from keyhole.spark.write_path.sink_states import SinkState
from keyhole.spark.write_path.stage_plan import StagedState

# What a sum widens its column to. All else has the column's type, which SQL may read otherwise than it is called: the
# names of a struct's fields, and `timestamp`.
_SUMMED_TYPES = ("bigint", "double", "decimal")
_ORDERED_KINDS = (StateKind.LIST, StateKind.AGGREGATING)


def staged_state(part: SinkState, plan: StatePlan, rows: ClassicDataFrame, layout: HashLayout | None) -> StagedState:
    """A state's rows, each key group's in one partition.

    Args:
        layout: How the rows are partitioned; None: in no way that is known.
    """
    declaration = part.declaration
    descriptor = plan.descriptor
    placed, partitions = by_key_group(rows, layout, [column.name for column in descriptor.key], descriptor.key_groups)
    aggregation = None
    inputs: tuple[str, ...] = ()
    encoding = None
    if part.aggregator is not None:
        inputs = value_names(_inputs_only(declaration), rows.schema)
        aggregation = Aggregation(part.aggregator, inputs)
    if part.codec is not None:
        inputs = value_names(declaration, rows.schema)
        encoding = Encoding(part.codec, inputs)
    acts = declaration.op is not None or declaration.delete_when is not None
    # Where deletions have an order, the servers compare it.
    sorts = acts and not descriptor.keep_deleted_ms
    ordered = declaration.order_by is not None and (sorts or descriptor.kind in _ORDERED_KINDS)
    if ordered:
        assert declaration.order_by is not None
        placed = sorted_within_partitions(placed, declaration.order_by)
    # In a list nothing but clearing has to do with the rows before, and that comes first.
    folds = ordered and sorts and descriptor.kind is not StateKind.LIST
    task = TaskState(descriptor.state, in_order=folds, aggregation=aggregation, encoding=encoding)
    staged = _staged_rows(placed, declaration, descriptor, inputs)
    return StagedState(
        [plan],
        partitions,
        lambda order: [map_in_arrow(staged, functools.partial(stage_task, order, task), RECEIPT_SCHEMA)],
    )


def _inputs_only(declaration: Declaration) -> Declaration:
    """Of an aggregating state, as if its rows were its value."""
    return dataclasses.replace(declaration, result=None)


def _staged_rows(
    rows: DataFrame, declaration: Declaration, descriptor: StateDescriptor, inputs: Sequence[str]
) -> DataFrame:
    """The key's and the value's columns, as columnar.encode takes them; or the aggregator's or codec's.

    In SQL: a Column is a dozen calls to Spark's JVM, for each batch again.

    Raises:
        InvalidConfiguration: `delete_when` is no condition on these rows.
    """
    columns = [quoted(part.name) for part in (*descriptor.key, *descriptor.map_key)]
    if descriptor.kind is StateKind.REDUCING:
        columns += _reduced_columns(declaration, descriptor)
    else:
        columns += map(quoted, inputs or [field.name for field in descriptor.value.fields])
    default = Op.REPLACE if declaration.replaces else Op.PUT
    condition = declaration.delete_when
    if declaration.op is not None:
        op = quoted(declaration.op)
        # What is null is taken for a put; only a list may declare something else.
        columns.append(f"coalesce({op}, '{default}') AS {OP}" if declaration.replaces else f"{op} AS {OP}")
    elif condition is not None:
        try:
            deletes = F.expr(condition) if isinstance(condition, str) else condition
            # What is neither true nor false deletes nothing.
            rows = rows.withColumn(OP, F.when(deletes, F.lit(Op.DELETE.value)).otherwise(F.lit(default.value)))
        except AnalysisException as error:
            raise InvalidConfiguration(
                f"state {declaration.state!r}: delete_when is no condition on the batch's columns "
                f"({', '.join(rows.columns)}): {error}",
                state=declaration.state,
            ) from error
        columns.append(OP)
    elif declaration.replaces:
        columns.append(f"'{Op.REPLACE}' AS {OP}")
    return selected(rows, columns)


def _reduced_columns(declaration: Declaration, descriptor: StateDescriptor) -> list[str]:
    """The value columns as they are staged, in SQL, called as their fields."""
    return [
        f"{reduced_column(field, parse(reducer), declaration.column)} AS {quoted(field.name)}"
        for field, reducer in zip(descriptor.value.fields, descriptor.reducers, strict=True)
    ]


def reduced_column(field: ValueField, call: ReducerCall, column: Callable[[str], str]) -> str:
    """SQL of what a reducer is given of a column: widened to the field's type, or whether there is a value.

    Args:
        column: Of a field's name: the column that it is made of.
    """
    of, kind = quoted(column(field.name)), field.type
    if call.reducer.of_presence:
        return f"CAST(CASE WHEN {of} IS NOT NULL THEN 1 ELSE 0 END AS bigint)"
    if call.by:
        # A row without what it goes by brings nothing, not even where no other row has come.
        return f"CASE WHEN {quoted(column(call.by))} IS NOT NULL THEN {of} END"
    return f"CAST({of} AS {kind})" if kind.startswith(_SUMMED_TYPES) else of
