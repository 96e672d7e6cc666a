"""A state as its job declares it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import types as spark

from keyhole.model.state import StateKind, TtlClock

RANKED_KINDS = (StateKind.VALUE, StateKind.MAP, StateKind.BROADCAST)
"""Kinds whose stored row is compared with a new one, by `order_by`."""


@dataclass(frozen=True)
class Declaration:
    """A state as its job declares it; the batch's schema says the rest.

    Attributes:
        value: None: all columns but the key's, and the one of `op`.
        reducers: Of a reducing state, the name of one for each of `value`.
        columns: Of a reducing state, the column that each of `value` is made of; empty: they are called alike.
        standbys: On how many servers beside the owner each key group is followed.
        ttl: How long an entry lives after it was last written; 0 ms: until it is deleted.
        max_length: Of a list, the most elements of a key; 0: any number.
        op: The column that says what a row does; None: there is none.
        delete_when: The condition under which a row deletes; None: none does.
        replaces: Of a list, whether an epoch's rows of a key take the place of those before.
        result: Of an aggregating state, the schema of the result, which is the value, as Spark writes it.
        encoded: The job encodes the value itself.
        versioned: The codec, if there is one, has a version, which readers get with each value.
        class_version: See StateDescriptor.
        keep_deleted_ms: See StateDescriptor.
        keep_epochs, index: See StateDescriptor.
        defaults: By field of the value, what rows have in it that were written before there was the field.
    """

    state: str
    key: tuple[str, ...]
    key_groups: int
    value: tuple[str, ...] | None
    order_by: str | None
    reducers: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    standbys: int = 0
    kind: StateKind = StateKind.VALUE
    map_key: tuple[str, ...] = ()
    ttl_ms: int = 0
    ttl_clock: TtlClock = TtlClock.PROCESSING_TIME
    max_length: int = 0
    op: str | None = None
    delete_when: Column | str | None = None
    replaces: bool = False
    result: str | spark.StructType | None = None
    defaults: Mapping[str, object] = dataclasses.field(default_factory=dict)
    encoded: bool = False
    keep_deleted_ms: int = 0
    versioned: bool = False
    class_version: int = 0
    keep_epochs: int = 0
    index: tuple[str, ...] = ()

    def column(self, field: str) -> str:
        """The column that a field of the value is made of."""
        return self.columns[(self.value or ()).index(field)] if self.columns else field
