"""Schemas that a user writes: as Spark's text, or as a StructType."""

from __future__ import annotations

from pyspark.errors import ParseException
from pyspark.sql import types as spark

from keyhole.errors import InvalidConfiguration


def result_schema(result: str | spark.StructType) -> spark.StructType:
    """The fields of an aggregate's result. Needs a Spark session where they are given as text.

    Raises:
        InvalidConfiguration: It is no schema.
    """
    if isinstance(result, spark.StructType):
        return result
    try:
        parsed = spark.StructType.fromDDL(result)
    except ParseException as error:
        raise InvalidConfiguration(f"result: {result!r} is no schema, as 'n bigint, mean double'") from error
    # One name alone is read as a type.
    return parsed if isinstance(parsed, spark.StructType) else spark.StructType([spark.StructField("value", parsed)])


def struct(what: str, schema: str | spark.StructType) -> spark.StructType:
    """A schema of at least one column. Needs a Spark session where it is given as text.

    Args:
        what: For the error.

    Raises:
        InvalidConfiguration: It is no schema, or one without columns.
    """
    try:
        made = spark.StructType.fromDDL(schema) if isinstance(schema, str) else schema
    except ParseException as error:
        raise InvalidConfiguration(f"{what}: {schema!r} is no schema, as 'a double, b string'") from error
    if not isinstance(made, spark.StructType) or not made.fields:
        raise InvalidConfiguration(
            f"{what}: its schema must name at least one column with its type, as 'celsius double'"
        )
    return made
