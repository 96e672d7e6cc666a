"""The words of an exposed state: its declaration, its changes, and the columns in which they leave Spark's operator.

The operator's output has the columns of the processor's own rows, which all may be null, and behind them

    _keyhole_state          string  the exposed state that the row is a change of; null: a row of the processor's own
    _keyhole_op             string  what it does: put, append, delete (one entry of a map) or clear (all of the key)
    _keyhole_key_<column>           for each column of the grouping key
    _keyhole_change_<state>         for each exposed state, a struct of its map key's columns and its value's, by name
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql import types as spark

from keyhole.arrow import OP, Op
from keyhole.types import StateKind

PREFIX = "_keyhole_"
STATE_COLUMN = "_keyhole_state"
KEY_PREFIX = "_keyhole_key_"
CHANGE_PREFIX = "_keyhole_change_"

GROUPING_KEY = "keyhole.grouping_key"
"""In the metadata of a column: it holds this one, counted from 0, of the columns that the operator groups by."""


@dataclass(frozen=True)
class ExposedValue:
    """A value state that is to be queryable.

    Args:
        schema: As the processor's `init` declares it.
    """

    schema: spark.StructType | str


@dataclass(frozen=True)
class ExposedList:
    """A list state that is to be queryable.

    Args:
        schema: Of one element, as the processor's `init` declares it.
    """

    schema: spark.StructType | str


@dataclass(frozen=True)
class ExposedMap:
    """A map state that is to be queryable.

    Args:
        key: The schema of the map's keys, as the processor's `init` declares it.
        value: The schema of its values, likewise.
    """

    key: spark.StructType | str
    value: spark.StructType | str


@dataclass(frozen=True)
class ExposedState:
    """A state variable that is to be queryable, with its schemas.

    Attributes:
        map_key: Of a map, the schema of its keys; else without fields.
    """

    name: str
    kind: StateKind
    value: spark.StructType
    map_key: spark.StructType

    def __str__(self) -> str:
        """The kind and the schemas, without what makes no difference to a reader: comments, and what may be null."""
        schemas = [self.map_key, self.value] if self.kind is StateKind.MAP else [self.value]
        return f"{self.kind} of " + " to ".join(schema.simpleString() for schema in schemas)

    @property
    def entry(self) -> spark.StructType:
        """The columns of a change row that are the state's own. Each may be null: a clear has none of them."""
        fields = self.map_key.fields + self.value.fields
        return spark.StructType([spark.StructField(field.name, field.dataType) for field in fields])


class Change(NamedTuple):
    """One change row.

    Attributes:
        key: The grouping key's columns by name.
        entry: The map key's columns and the value's, as far as the operation has them.
    """

    state: str
    op: Op
    key: dict[str, Any]
    entry: dict[str, Any]


def output_schema(own: spark.StructType, key: spark.StructType, exposed: Sequence[ExposedState]) -> spark.StructType:
    """The operator's output.

    Args:
        own: Of the processor's own rows.
        key: Of the grouping key.
    """
    fields = [spark.StructField(field.name, field.dataType, True, field.metadata) for field in own.fields]
    fields += [spark.StructField(STATE_COLUMN, spark.StringType()), spark.StructField(OP, spark.StringType())]
    fields += [
        spark.StructField(KEY_PREFIX + field.name, field.dataType, True, {GROUPING_KEY: number})
        for number, field in enumerate(key.fields)
    ]
    fields += [spark.StructField(CHANGE_PREFIX + state.name, state.entry) for state in exposed]
    return spark.StructType(fields)
