"""The words of an exposed state: its declaration, and the columns in which its changes leave Spark's operator.

The operator's output has the columns of the processor's own rows, which all may be null, and behind them

    _keyhole_state    string  the exposed state of which the row holds changes; null: a row of the processor's own
    _keyhole_changes  binary  its change rows, as keyhole.spark.worker.pack packs them
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from pyspark.sql import types as spark

from keyhole.encoding.columnar import OP
from keyhole.model.state import StateKind
from keyhole.spark.declaration.ttl import Ttl

PREFIX = "_keyhole_"
STATE_COLUMN = "_keyhole_state"
CHANGES_COLUMN = "_keyhole_changes"

KEY_PREFIX = "_keyhole_key_"
"""Before the names of the grouping key's columns, where rows hold them packed."""

GROUPING_KEY = "keyhole.grouping_key"
"""In the metadata of a column: it holds this one, counted from 0, of the columns that the operator groups by."""

_EXPOSED = "keyhole.exposed"
# In the metadata of the column of changes: by state, the schema of its change rows, as JSON.

TtlClockName = Literal["processing_time", "event_time"]


@dataclass(frozen=True)
class ExposedValue:
    """A value state that is to be queryable.

    Args:
        schema: As the processor's `init` declares it.
        ttl: How long an entry is readable after it was last written; for states that the processor's `init` gives none:
            one that it gives is the exposed state's, too. Default: queryable.exposed's.
        ttl_clock: The time by which `ttl` counts; default: processing time.
        name: Under which readers find it; default: the one that the processor's `init` declares it by.
    """

    schema: spark.StructType | str
    ttl: timedelta | None = None
    ttl_clock: TtlClockName | None = None
    name: str | None = None


@dataclass(frozen=True)
class ExposedList:
    """A list state that is to be queryable: as long as the processor's own, which its code keeps short or does not.

    Args:
        schema: Of one element, as the processor's `init` declares it.
        ttl, ttl_clock: Of each element, as for ExposedValue.
        name: As for ExposedValue.
    """

    schema: spark.StructType | str
    ttl: timedelta | None = None
    ttl_clock: TtlClockName | None = None
    name: str | None = None


@dataclass(frozen=True)
class ExposedMap:
    """A map state that is to be queryable.

    Args:
        key: The schema of the map's keys, as the processor's `init` declares it.
        value: The schema of its values, likewise.
        ttl, ttl_clock: Of each entry, as for ExposedValue.
        name: As for ExposedValue.
    """

    key: spark.StructType | str
    value: spark.StructType | str
    ttl: timedelta | None = None
    ttl_clock: TtlClockName | None = None
    name: str | None = None


@dataclass(frozen=True)
class ExposedState:
    """A state variable that is to be queryable, with its schemas.

    Attributes:
        name: Under which it is declared to Keyhole, stored, and found by readers.
        map_key: Of a map, the schema of its keys; else without fields.
        ttl: Its own; None: it has that of the processor, or of queryable.exposed.
        alias_of: Under which the processor's `init` declares it, where that is another name; else empty.
    """

    name: str
    kind: StateKind
    value: spark.StructType
    map_key: spark.StructType
    ttl: Ttl | None = None
    alias_of: str = ""

    @property
    def variable(self) -> str:
        """The name under which the processor's `init` declares it."""
        return self.alias_of or self.name

    @property
    def title(self) -> str:
        """What messages to the user call the state."""
        return f"state {self.variable!r}" + (f" (exposed as {self.name!r})" if self.alias_of else "")

    def __str__(self) -> str:
        """The kind and the schemas, without what makes no difference to a reader: comments, and what may be null."""
        schemas = [self.map_key, self.value] if self.kind is StateKind.MAP else [self.value]
        return f"{self.kind} of " + " to ".join(schema.simpleString() for schema in schemas)

    @property
    def entry(self) -> spark.StructType:
        """The columns of a change row that are the state's own. Each may be null: a clear has none of them."""
        fields = self.map_key.fields + self.value.fields
        return spark.StructType([spark.StructField(field.name, field.dataType) for field in fields])

    def changes(self, key: spark.StructType) -> spark.StructType:
        """A change row: OP, an Op; the columns of the grouping key; those of `entry`.

        Args:
            key: The grouping key.
        """
        fields = [spark.StructField(OP, spark.StringType())]
        fields += [
            spark.StructField(field.name, field.dataType, True, {GROUPING_KEY: number})
            for number, field in enumerate(key.fields)
        ]
        return spark.StructType(fields + self.entry.fields)


def output_schema(own: spark.StructType, key: spark.StructType, exposed: Sequence[ExposedState]) -> spark.StructType:
    """The operator's output.

    Args:
        own: Of the processor's own rows.
        key: Of the grouping key.
    """
    fields = [spark.StructField(field.name, field.dataType, True, field.metadata) for field in own.fields]
    schemas = {state.name: state.changes(key).json() for state in exposed}
    fields.append(spark.StructField(STATE_COLUMN, spark.StringType()))
    fields.append(spark.StructField(CHANGES_COLUMN, spark.BinaryType(), True, {_EXPOSED: schemas}))
    return spark.StructType(fields)


def exposed_in(output: spark.StructType) -> Mapping[str, spark.StructType] | None:
    """By exposed state, the schema of its change rows, from the operator's output; None: it is no processor's
    output.
    """
    for field in output.fields:
        if field.name == CHANGES_COLUMN and _EXPOSED in field.metadata:
            schemas: Mapping[str, str] = field.metadata[_EXPOSED]
            return {state: _schema(schema) for state, schema in schemas.items()}
    return None


@functools.lru_cache(maxsize=256)
def _schema(written: str) -> spark.StructType:
    """Each batch has the same, and asks more than once."""
    return spark.StructType.fromJson(json.loads(written))


def grouping_key(schema: spark.StructType) -> dict[int, str]:
    """By number, the columns that the operator groups by, as far as they are there; packed ones have KEY_PREFIX."""
    prefix, fields = "", schema.fields
    if exposed := exposed_in(schema):
        prefix, fields = KEY_PREFIX, next(iter(exposed.values())).fields
    return {field.metadata[GROUPING_KEY]: prefix + field.name for field in fields if GROUPING_KEY in field.metadata}


def packed_key(key: Sequence[str]) -> tuple[str, ...]:
    """The grouping key as layouts of rows have it that hold it packed.

    Not by its own names: the processor's own rows may have columns of the same ones, which are null where changes are.
    """
    return tuple(KEY_PREFIX + name for name in key)
