"""From a column of the batch to a column of the key, or an error that names it."""

from __future__ import annotations

from pyspark.sql import types as spark

from keyhole.errors import KeyMismatch
from keyhole.model.state import KeyColumn, KeyType
from keyhole.spark.declaration.batch_columns import PLAIN_COLLATION, column_of
from keyhole.spark.declaration.declared import Declaration

_KEY_TYPES: dict[type[spark.DataType], KeyType] = {
    spark.StringType: KeyType.STRING,
    spark.BinaryType: KeyType.BINARY,
    spark.BooleanType: KeyType.BOOLEAN,
    spark.ShortType: KeyType.SMALLINT,
    spark.IntegerType: KeyType.INT,
    spark.LongType: KeyType.BIGINT,
    spark.DateType: KeyType.DATE,
    spark.TimestampType: KeyType.TIMESTAMP,
}


def key_column(declaration: Declaration, role: str, name: str, schema: spark.StructType) -> KeyColumn:
    """The key column of that name.

    Args:
        role: For the error: key, or map key.

    Raises:
        KeyMismatch: It is missing, or has a name that can't be, or is of a type that can't be a key.
    """
    column = column_of(declaration, role, name, schema, KeyMismatch)
    kind = column.dataType
    if isinstance(kind, spark.StringType) and kind.collation != PLAIN_COLLATION:
        raise KeyMismatch(
            f"state {declaration.state!r}: {role} column {name!r} has the collation {kind.collation}, by which "
            'different strings can be equal; a key can\'t have one. Cast it to plain strings: col(...).cast("string")',
            column=name,
        )
    key_type = _KEY_TYPES.get(type(kind))
    if key_type is None:
        raise KeyMismatch(
            f"state {declaration.state!r}: {role} column {name!r} is of type {kind.simpleString()}, which can't be a "
            f"key; a {role} column must be one of {', '.join(KeyType)}",
            column=name,
            type=kind.simpleString(),
        )
    return KeyColumn(name, key_type)
