"""The columns of a batch that a state reads: which these are, and whether they are several to Spark and Python too."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import types as spark

from keyhole.errors import InvalidConfiguration, KeyholeError, KeyMismatch, ValueMismatch
from keyhole.spark.declaration.declared import RANKED_KINDS, Declaration
from keyhole.spark.exposed import PREFIX

PLAIN_COLLATION = "UTF8_BINARY"
"""Spark's name for "no collation"."""

ONE_NAME = "are one name to Spark (spark.sql.caseSensitive)"

NUL, VARIABLE = "\0", "${"
NOT_IN_NAMES = {
    NUL: "a NUL character, at which Spark cuts a name off on its way to Python",
    VARIABLE: "${, by which Spark's SQL takes it for a variable's",
}
"""What the name of a column that is read can't hold, and why. NUL holds for all columns of a batch, if Python is given
them."""


def value_names(declaration: Declaration, schema: spark.StructType) -> tuple[str, ...]:
    """The columns that are the value.

    Raises:
        ValueMismatch: There are none.
    """
    if declaration.result is not None:
        return tuple(schema.names)
    names = read_names(declaration, schema)
    if not names:
        raise ValueMismatch(
            f"state {declaration.state!r}: the batch has no column beside the key ({', '.join(declaration.key)}); "
            "give it at least one value column",
            state=declaration.state,
        )
    return names


def read_names(declaration: Declaration, schema: spark.StructType) -> tuple[str, ...]:
    """The columns of the batch that are the value, or that an aggregator or a codec makes it of."""
    names = declaration.columns or declaration.value
    if names is None:
        others = {*declaration.key, *declaration.map_key, declaration.op}
        names = tuple(name for name in schema.names if name not in others)
    # What a row ranks by is compared with later rows'; what only orders those of a batch is not needed after it.
    order_by = declaration.order_by if declaration.kind in RANKED_KINDS else None
    return names if order_by is None or order_by in names else (*names, order_by)


def column_of(
    declaration: Declaration, role: str, name: str, schema: spark.StructType, error: type[KeyholeError]
) -> spark.StructField:
    """The column of that name. Raises `error`: there is none, or several, or its name can't be."""
    found = [field for field in schema.fields if field.name == name]
    for part, why in NOT_IN_NAMES.items():
        if part in name:
            raise error(
                f"state {declaration.state!r}: the name of {role} column {name!r} holds {why}; rename the column",
                column=name,
            )
    if role != "op" and name.lower().startswith(PREFIX):
        # It would be taken for what a row does, say, without a word.
        raise error(
            f"state {declaration.state!r}: {role} column {name!r}: names that begin with {PREFIX} are Keyhole's; "
            "rename it",
            column=name,
        )
    if len(found) == 1:
        return found[0]
    what = "does not exist" if not found else f"exists {len(found)} times"
    raise error(
        f"state {declaration.state!r}: {role} column {name!r} {what} in the batch, whose columns are "
        f"{', '.join(schema.names)}",
        column=name,
    )


def check_told_apart(declaration: Declaration, schema: spark.StructType, by_case: Callable[[], bool]) -> None:
    """Of the columns that are read. Those of the same name are `column_of`'s business.

    Args:
        by_case: Whether columns whose names differ by case alone are several to Spark; called only where there are any.

    Raises:
        KeyMismatch, ValueMismatch: Two columns are one to Spark.
    """
    keys = (*declaration.key, *declaration.map_key)
    others = [name for name in (declaration.op, declaration.order_by) if name is not None]
    for name in (*keys, *others, *read_names(declaration, schema)):
        alike = [other for other in schema.names if other != name and other.lower() == name.lower()]
        if alike and name in schema.names and not by_case():
            raise (KeyMismatch if name in keys else ValueMismatch)(
                f"state {declaration.state!r}: the batch has the columns {name!r} and {alike[0]!r}, which "
                f"{ONE_NAME}; rename or drop one",
                column=name,
            )


def check_all_columns(what: str, rows: DataFrame) -> None:
    """Of rows that Python is given with all their columns.

    Args:
        what: Who wants them, for the error.

    Raises:
        InvalidConfiguration: A name can't be, or is the same to Spark as another one.
    """
    seen: dict[str, str] = {}
    for name in rows.columns:
        if NUL in name:
            raise InvalidConfiguration(f"{what}: the name of column {name!r} holds {NOT_IN_NAMES[NUL]}; rename it")
        other = seen.get(name.lower())
        if other is not None and (other == name or not case_sensitive(rows)):
            raise InvalidConfiguration(
                f"{what}: the rows have the columns {other!r} and {name!r}, which {ONE_NAME}; rename or drop one",
                column=name,
            )
        seen[name.lower()] = name


def case_sensitive(rows: DataFrame) -> bool:
    """Whether columns whose names differ by case alone are several to Spark."""
    return rows.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
