"""Names that Spark can keep in the states of a processor: it writes their schemas in Avro. Pure.

celsius, _2, Größe      kept
a.b, $x, 2nd, a b       Spark ends the query's first batch: "Illegal initial character: $x"
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import types as spark

from keyhole.errors import InvalidConfiguration


def check_names(what: str, schema: spark.StructType) -> None:
    """Refuses what Spark would refuse once the query runs, without the state.

    Args:
        what: Whose columns they are, for the error.
        schema: Of a state's columns, or of the grouping key's.

    Raises:
        InvalidConfiguration: A column, or a field of a struct in it, has a name that Spark can't keep.
    """
    for name in _names(schema):
        if not _is_kept(name):
            raise InvalidConfiguration(
                f"{what}: Spark can't keep a column or field that is called {name!r}: the schemas of a processor's "
                "states are written in Avro, where a name has letters, digits and _ alone, and no digit first. "
                "Rename it",
                column=name,
            )


def _is_kept(name: str) -> bool:
    letters = name.replace("_", "a")
    return letters[:1].isalpha() and letters.isalnum()


def _names(of: spark.DataType) -> Iterator[str]:
    match of:
        case spark.StructType():
            for field in of.fields:
                yield field.name
                yield from _names(field.dataType)
        case spark.ArrayType():
            yield from _names(of.elementType)
        case spark.MapType():
            yield from _names(of.keyType)
            yield from _names(of.valueType)
