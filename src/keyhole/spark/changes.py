"""Takes apart what QueryableProcessor.transform gives out, or a micro-batch of it: own rows, and changes by state.

All rows of a key are in one partition, and stand there in the order in which they take effect. The columns stand in
keyhole.spark.exposed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import types as spark

from keyhole.arrow import OP
from keyhole.errors import InvalidConfiguration
from keyhole.spark.exposed import CHANGE_PREFIX, GROUPING_KEY, KEY_PREFIX, PREFIX, STATE_COLUMN
from keyhole.spark.partitioning import HashLayout, column, quoted


@dataclass(frozen=True)
class Split:
    """One micro-batch of a queryable processor in parts. Each use of one runs the batch's plan, unless it is persisted.

    Attributes:
        rows: The processor's own rows. For Spark each column may be null.
        changes: By exposed state, its change rows: `_keyhole_op` (an Op), the columns of the grouping key, those of the
            map key if it is a map, and those of the value. A clear has the grouping key alone, a delete that and the
            map key; the rest is null.
    """

    rows: DataFrame
    changes: Mapping[str, DataFrame]


def split(batch: DataFrame) -> Split:
    """Parts a batch; doesn't run anything.

    Raises:
        InvalidConfiguration: It is no queryable processor's.
    """

    def changes(state: str) -> DataFrame:
        rows = changes_of([state], batch)
        _, *columns, entry = map(quoted, rows.columns)
        return rows.selectExpr(*columns, f"{entry}.*")

    states = [name.removeprefix(CHANGE_PREFIX) for name in batch.columns if name.startswith(CHANGE_PREFIX)]
    return Split(own_rows(batch), {state: changes(state) for state in states})


def own_rows(batch: DataFrame) -> DataFrame:
    """Split.rows. Raises as `split`."""
    _check_is_output(batch.columns)
    own = [quoted(name) for name in batch.columns if not name.startswith(PREFIX)]
    return batch.filter(f"{STATE_COLUMN} IS NULL").selectExpr(*own)


def changes_of(states: Sequence[str], batch: DataFrame) -> DataFrame:
    """The change rows of these states, with a struct for each one's columns, and the key's columns by their own names.

    Raises:
        InvalidConfiguration: The batch is no queryable processor's, or its processor exposes no such state.
    """
    _check_is_output(batch.columns, states)
    key = [f"{quoted(KEY_PREFIX + name)} AS {quoted(name)}" for name in _key_fields(batch.schema)]
    chosen = column(STATE_COLUMN).isin(list(states))
    return batch.filter(chosen).selectExpr(STATE_COLUMN, OP, *key, *(quoted(CHANGE_PREFIX + state) for state in states))


def changes_schema(state: str, batch: spark.StructType) -> spark.StructType:
    """The columns of the state's change rows, as in Split.changes.

    Args:
        batch: The batch's schema.

    Raises:
        InvalidConfiguration: As `changes_of`.
    """
    _check_is_output(batch.names, [state])
    key = [spark.StructField(name, kind) for name, kind in _key_fields(batch).items()]
    entry = batch[CHANGE_PREFIX + state].dataType
    assert isinstance(entry, spark.StructType)
    return spark.StructType([spark.StructField(OP, spark.StringType()), *key, *entry.fields])


def changes_layout(layout: HashLayout | None) -> HashLayout | None:
    """How the change rows are partitioned where the batch is so: they are in the same places.

    By own columns of the processor's, which may have the same names, it says nothing of them: there they are null.
    """
    if layout is None or not all(name.startswith(KEY_PREFIX) for name in layout.columns):
        return None
    return HashLayout(tuple(name.removeprefix(KEY_PREFIX) for name in layout.columns), layout.partitions)


def changes_in(rows: pa.RecordBatch, state: str) -> pa.RecordBatch:
    """In a task: the state's rows of those that `changes_of` gives, with the columns that `changes_schema` tells."""
    its = rows.filter(pc.equal(rows.column(STATE_COLUMN), state))
    columns = {name: its.column(name) for name in its.schema.names if name == OP or not name.startswith(PREFIX)}
    entry = its.column(CHANGE_PREFIX + state)
    columns |= dict(zip((field.name for field in entry.type), entry.flatten(), strict=True))
    return pa.record_batch(columns)


def _key_fields(batch: spark.StructType) -> dict[str, spark.DataType]:
    """The columns of the grouping key by their own names."""
    return {
        field.name.removeprefix(KEY_PREFIX): field.dataType
        for field in batch.fields
        if GROUPING_KEY in (field.metadata or {})
    }


def _check_is_output(columns: Sequence[str], states: Sequence[str] = ()) -> None:
    if STATE_COLUMN not in columns:
        raise InvalidConfiguration(
            "the batch is not the output of a queryable processor; give the data frame on as foreachBatch gave it"
        )
    for state in states:
        if CHANGE_PREFIX + state not in columns:
            raise InvalidConfiguration(
                f"the batch has no changes of state {state!r}: its processor doesn't expose it",
                state=state,
            )
