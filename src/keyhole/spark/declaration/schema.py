"""From a batch's schema to the state's descriptor, or an error that names the column."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import types as spark

from keyhole.encoding.indexed_fields import indexed_fields
from keyhole.errors import ValueMismatch
from keyhole.model.state import StateDescriptor, ValueField, ValueSchema
from keyhole.spark.declaration.batch_columns import check_told_apart, column_of, read_names, value_names
from keyhole.spark.declaration.declared import RANKED_KINDS, Declaration
from keyhole.spark.declaration.given_schema import result_schema
from keyhole.spark.declaration.key_columns import key_column
from keyhole.spark.declaration.value_codec import encoded_fields
from keyhole.spark.declaration.value_schema import ORDERED_VALUES, reduced_field, value_field, with_defaults


def describe(
    declaration: Declaration,
    application: str,
    query: str,
    schema: spark.StructType,
    by_case: Callable[[], bool] = lambda: False,
) -> StateDescriptor:
    """The state's descriptor, without a topic id.

    Args:
        by_case: Whether columns whose names differ by case alone are several to Spark; called only where there are any.

    Raises:
        KeyMismatch: A key column is missing, or of a type that can't be a key, or has a name that can't be.
        ValueMismatch: There is no value column. Or one is missing, has a name that can't be, or is of a type that can't
            be stored or reduced. Or a default does not fit its field, or an index can't be kept.
    """
    check_told_apart(declaration, schema, by_case)
    key = tuple(key_column(declaration, "key", name, schema) for name in declaration.key)
    map_key = tuple(key_column(declaration, "map key", name, schema) for name in declaration.map_key)
    if declaration.op is not None:
        _check_op(declaration, schema)
    if declaration.order_by is not None:
        _check_order(declaration, declaration.order_by, schema)
    if declaration.result is not None or declaration.encoded:
        for name in read_names(declaration, schema):
            column_of(declaration, "value", name, schema, ValueMismatch)
    if declaration.result is not None:
        schema = result_schema(declaration.result)
        _check_result(declaration, schema)
    names = value_names(declaration, schema)
    if declaration.encoded:
        fields = encoded_fields(versioned=declaration.versioned)
    else:
        fields = tuple(value_field(declaration, name, schema) for name in names)
    if declaration.columns:
        renamed = zip(declaration.value or (), fields, strict=True)
        fields = tuple(ValueField(name, of.type, of.nullable) for name, of in renamed)
    if declaration.reducers:
        pairs = zip(fields, declaration.reducers, strict=True)
        fields = tuple(reduced_field(declaration, field, reducer) for field, reducer in pairs)
    fields = with_defaults(declaration, fields)
    descriptor = StateDescriptor(
        application=application,
        state=declaration.state,
        query=query,
        kind=declaration.kind,
        key_groups=declaration.key_groups,
        key=key,
        value=ValueSchema(version=1, fields=fields),
        # Of a list and of an aggregate it orders the rows of an epoch, in the task.
        order_by=(declaration.order_by or "") if declaration.kind in RANKED_KINDS else "",
        reducers=declaration.reducers,
        map_key=map_key,
        ttl_ms=declaration.ttl_ms,
        ttl_clock=declaration.ttl_clock,
        max_length=declaration.max_length,
        keep_deleted_ms=declaration.keep_deleted_ms,
        class_version=declaration.class_version,
        keep_epochs=declaration.keep_epochs,
        index=declaration.index,
    )
    indexed_fields(descriptor)
    return descriptor


def _check_result(declaration: Declaration, schema: spark.StructType) -> None:
    """A reader of the state as a table would have two columns of one name."""
    if twice := sorted({*declaration.key, *declaration.map_key} & set(schema.names)):
        raise ValueMismatch(
            f"state {declaration.state!r}: result names {', '.join(twice)}, which is part of the key, and every reader "
            "knows that; leave it out, or give the field another name",
            column=twice[0],
        )


def _check_op(declaration: Declaration, schema: spark.StructType) -> None:
    assert declaration.op is not None
    kind = column_of(declaration, "op", declaration.op, schema, ValueMismatch).dataType
    if not isinstance(kind, spark.StringType):
        raise ValueMismatch(
            f"state {declaration.state!r}: op column {declaration.op!r} is of type {kind.simpleString()}; it must be a "
            "string that says what the row does",
            column=declaration.op,
        )


def _check_order(declaration: Declaration, name: str, schema: spark.StructType) -> None:
    kind = column_of(declaration, "order_by", name, schema, ValueMismatch).dataType
    if not isinstance(kind, ORDERED_VALUES):
        raise ValueMismatch(
            f"state {declaration.state!r}: order_by column {name!r} is of type {kind.simpleString()}, whose values "
            "have no highest; take a number, a string, a date or a timestamp",
            column=name,
            type=kind.simpleString(),
        )
