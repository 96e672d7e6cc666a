"""The types of a descriptor's fields as Spark's types."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from pyspark.sql import types as spark

from keyhole.model.state import StateDescriptor
from keyhole.model.type_names import TypeName, not_stored, parsed

_SIMPLE: Mapping[str, spark.DataType] = {
    of.simpleString(): of
    for of in (
        spark.BooleanType(),
        spark.ByteType(),
        spark.ShortType(),
        spark.IntegerType(),
        spark.LongType(),
        spark.FloatType(),
        spark.DoubleType(),
        spark.StringType(),
        spark.BinaryType(),
        spark.DateType(),
        spark.TimestampType(),
        spark.TimestampNTZType(),
    )
}


def value_schema(descriptor: StateDescriptor) -> spark.StructType:
    """The value's fields as Spark's types."""
    fields = descriptor.value.fields
    return spark.StructType([spark.StructField(field.name, spark_type(field.type)) for field in fields])


@functools.lru_cache(maxsize=256)
def spark_type(name: str) -> spark.DataType:
    """Of a type's name as descriptors have it. Not as Spark's SQL reads it: field names stand there without quotes."""
    return _made(parsed(name))


def _made(of: TypeName) -> spark.DataType:
    parts = [_made(part) for part in of.parts]
    match of.kind:
        case "decimal":
            return spark.DecimalType(*of.digits)
        case "array":
            return spark.ArrayType(parts[0])
        case "map":
            return spark.MapType(parts[0], parts[1])
        case "struct":
            fields = zip(of.names, parts, strict=True)
            return spark.StructType([spark.StructField(name, part) for name, part in fields])
        case simple if simple in _SIMPLE:
            return _SIMPLE[simple]
    raise not_stored(of.kind)
