"""Takes apart what QueryableProcessor.transform gives out, or a micro-batch of it: own rows, and changes by state.

All rows of a key are in one partition, and stand there in the order in which they take effect. The columns stand in
keyhole.spark.exposed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import types as spark

from keyhole.errors import InvalidConfiguration
from keyhole.spark.driver.arrow_map import map_in_arrow
from keyhole.spark.driver.data_frames import column, quoted, selected
from keyhole.spark.exposed import CHANGES_COLUMN, PREFIX, STATE_COLUMN, exposed_in
from keyhole.spark.worker.pack import keyhole_change_rows

# What SQL takes for a text as it stands. A Column is a dozen calls to Spark's JVM.
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


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
    schemas = _exposed(batch.schema)
    return Split(
        own_rows(batch),
        {
            state: map_in_arrow(changes_of([state], batch), keyhole_change_rows, schema)
            for state, schema in schemas.items()
        },
    )


def own_rows(batch: DataFrame) -> DataFrame:
    """The processor's own rows of a batch, without those that change states: `Split.rows`. Raises as `split`."""
    if STATE_COLUMN not in batch.columns:
        raise _no_output()
    own = [quoted(name) for name in batch.columns if not name.startswith(PREFIX)]
    return selected(batch.filter(f"{STATE_COLUMN} IS NULL"), own)


def changes_of(states: Sequence[str], batch: DataFrame) -> DataFrame:
    """The changes of these states as they are packed: STATE_COLUMN, CHANGES_COLUMN."""
    if all(map(_PLAIN.fullmatch, states)):
        wanted = f"{STATE_COLUMN} IN ({', '.join(map(repr, states))})"
        rows = batch.filter(wanted)
    else:
        rows = batch.filter(column(STATE_COLUMN).isin(list(states)))
    return selected(rows, (STATE_COLUMN, CHANGES_COLUMN))


def changes_schema(state: str, batch: spark.StructType) -> spark.StructType:
    """The columns of the state's change rows, as in Split.changes.

    Args:
        batch: The batch's schema.

    Raises:
        InvalidConfiguration: The batch is no queryable processor's, or its processor doesn't expose the state.
    """
    schemas = _exposed(batch)
    if state not in schemas:
        raise InvalidConfiguration(
            f"the batch has no changes of state {state!r}: its processor doesn't expose it",
            state=state,
        )
    return schemas[state]


def _exposed(batch: spark.StructType) -> Mapping[str, spark.StructType]:
    exposed = exposed_in(batch)
    if exposed is None:
        raise _no_output()
    return exposed


def _no_output() -> InvalidConfiguration:
    return InvalidConfiguration(
        "the batch is not the output of a queryable processor; give the data frame on as foreachBatch gave it"
    )
