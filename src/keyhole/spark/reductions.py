"""The reducers of a reducing state's fields, as a job writes them: each field has a name of its own, and says of which
column it is.

    from keyhole.spark.reductions import count, max, sum

    queryable.reducing(
        "spent", key="customer", reducers={"orders": count(), "spent": sum("amount"), "largest": max("amount")}
    )

The functions have the names that SQL has, and hide Python's own where they are imported so: `from keyhole.spark import
reductions`, and `reductions.sum("amount")`, is the other way. docs/spark-reference.md says what each takes
and gives. Pure.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keyhole.encoding.reducers import by_reducer
from keyhole.errors import InvalidConfiguration

__all__ = [
    "Reduction",
    "all",
    "any",
    "count",
    "first",
    "last",
    "max",
    "max_by",
    "min",
    "min_by",
    "sum",
]


@dataclass(frozen=True)
class Reduction:
    """How a field is made of the rows of a key.

    Attributes:
        reducer: Its name.
        column: Of the rows; None: of each row, whatever it has.
        by: Of `min_by` and `max_by`, the column by which they go; else empty.
    """

    reducer: str
    column: str | None
    by: str = ""


def count(column: str | None = None) -> Reduction:
    """How many rows there were; with a column, how many of them had a value in it."""
    return Reduction("count", column)


def sum(column: str) -> Reduction:  # noqa: A001 - SQL's name, as of all here
    """The sum of a column of numbers; null until a value has come."""
    return Reduction("sum", column)


def min(column: str) -> Reduction:  # noqa: A001
    """The lowest value, as Spark sorts."""
    return Reduction("min", column)


def max(column: str) -> Reduction:  # noqa: A001
    """The highest value, as Spark sorts."""
    return Reduction("max", column)


def any(column: str) -> Reduction:  # noqa: A001
    """Whether one of the booleans is true."""
    return Reduction("any", column)


def all(column: str) -> Reduction:  # noqa: A001
    """Whether each of the booleans is true."""
    return Reduction("all", column)


def first(column: str) -> Reduction:
    """The value of the first batch that had one."""
    return Reduction("first", column)


def last(column: str) -> Reduction:
    """The value of the last batch that had one."""
    return Reduction("last", column)


def min_by(column: str, by: str) -> Reduction:
    """The value of the row with the lowest `by`, another column, of which another field is `min(by)`."""
    return Reduction("min_by", column, by)


def max_by(column: str, by: str) -> Reduction:
    """The value of the row with the highest `by`, another column, of which another field is `max(by)`."""
    return Reduction("max_by", column, by)


@dataclass(frozen=True)
class ReducedFields:
    """The fields of a state's value.

    Attributes:
        names: As readers know them, in order.
        reducers: Of each, as a descriptor has it: `sum`, `max_by(newest)`.
        columns: Of each, the column that it is of. Empty: all are called as their columns.
    """

    names: tuple[str, ...]
    reducers: tuple[str, ...]
    columns: tuple[str, ...]


def reduced_fields(state: str, reducers: object, key: Sequence[str]) -> ReducedFields:
    """What `queryable.reducing` was given, in either spelling.

    Args:
        key: Its columns: a row without one can't be, so that rows are counted by the first.

    Raises:
        InvalidConfiguration: It is no mapping, or one of its values is neither text nor a Reduction of columns' names.
    """
    if not isinstance(reducers, Mapping) or not reducers:
        raise InvalidConfiguration(
            f'state {state!r}: reducers says by field how rows are merged into it, as {{"spent": sum("amount")}} '
            '(keyhole.spark.reductions), or by column, as {"amount": "sum"}; name at least one',
            state=state,
        )
    given = {name: _reduction(state, name, reducer, key) for name, reducer in reducers.items()}
    names, texts, columns = [], [], []
    for name, reduction in given.items():
        texts.append(_text(state, name, reduction, given))
        names.append(name)
        columns.append(reduction.column or "")
    renamed = columns != names
    return ReducedFields(tuple(names), tuple(texts), tuple(columns) if renamed else ())


def _reduction(state: str, name: object, reducer: object, key: Sequence[str]) -> Reduction:
    if not isinstance(reducer, Reduction):
        # Text names the column by the field's name. What is neither is found where all reducers are looked at.
        return Reduction(reducer, name)  # type: ignore[arg-type]
    for column in (reducer.column, reducer.by):
        if column is not None and not isinstance(column, str):
            raise InvalidConfiguration(
                f"state {state!r}: {reducer.reducer} of field {name!r} is given {column!r}; give it a column's name",
                state=state,
            )
    if reducer.column is None:
        return Reduction(reducer.reducer, builtins.next(iter(key), ""))
    return reducer


def _text(state: str, name: object, reduction: Reduction, given: Mapping[str, Reduction]) -> str:
    if not reduction.by:
        return reduction.reducer
    wanted = by_reducer(reduction.reducer)
    for other, of in given.items():
        if (of.reducer, of.column) == (wanted, reduction.by):
            return f"{reduction.reducer}({other})"
    raise InvalidConfiguration(
        f"state {state!r}: field {name!r} goes by column {reduction.by!r}, whose {wanted} must be a field, too: add "
        f'"{wanted}_{reduction.by}": {wanted}("{reduction.by}") to the reducers',
        state=state,
    )
