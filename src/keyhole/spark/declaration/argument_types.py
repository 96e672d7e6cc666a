"""Whether what a user gives to queryable's functions is of the type it must be. Pure.

Python lets anything through, and what comes of it would only show in the first batch, in other words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from pyspark.sql import Column
from pyspark.sql.types import StructType

from keyhole.model.state import MOST_KEPT_EPOCHS, StateKind
from keyhole.spark.declaration.declared import Declaration

Columns: TypeAlias = str | Sequence[str]
"""One column's name, or several."""

MOST_ELEMENTS = (1 << 63) - 1
"""Of a list."""


def columns(names: Columns) -> tuple[str, ...]:
    """The names as a tuple. What can't be the names of columns stands in it alone, for `wrong_types` to find."""
    return tuple(names) if isinstance(names, Sequence) and not isinstance(names, (str, bytes)) else (names,)


def wrong_names(argument: str, names: Sequence[object]) -> Iterator[str]:
    """What is wrong with the names of columns, as `columns` gives them."""
    for name in names:
        if not isinstance(name, str):
            yield f"{argument} is given as {_in_words(name)}; give the column's name as text, or a list of names"


def wrong_types(of: Declaration) -> Iterator[str]:
    """What is wrong with the types of a declaration's arguments."""
    for argument, names in (("key", of.key), ("map_key", of.map_key), ("value", of.value or ()), ("index", of.index)):
        yield from wrong_names(argument, names)
    for argument, column in (("order_by", of.order_by), ("op", of.op)):
        if column is not None and not (isinstance(column, str) and column):
            yield f"{argument} is {_in_words(column)}; it must be the name of one column"
    condition = of.delete_when
    if condition is not None and not isinstance(condition, Column) and not (isinstance(condition, str) and condition):
        yield f"delete_when is {_in_words(condition)}; it must be a condition, as SQL text or a Column"
    if type(of.max_length) is not int or not 0 <= of.max_length <= MOST_ELEMENTS:
        yield f"max_length is {of.max_length!r}; it must be a whole number, 1 or more"
    if type(of.keep_epochs) is not int or not 0 <= of.keep_epochs <= MOST_KEPT_EPOCHS:
        yield f"keep_epochs is {of.keep_epochs!r}; it must be a whole number from 1 to {MOST_KEPT_EPOCHS}"
    if not isinstance(of.defaults, Mapping):
        yield 'defaults says by column what older entries have in it, as {"unit": "C"}'
    elif unnamed := [name for name in of.defaults if not isinstance(name, str)]:
        yield f"defaults names {_in_words(unnamed[0])}, which is no column's name"
    if of.kind is StateKind.AGGREGATING and not (isinstance(of.result, (str, StructType)) and of.result):
        yield f'result is {of.result!r}; it must be the schema of what readers get, as "n bigint, mean double"'


def _in_words(value: object) -> str:
    """What a user has given by mistake, in words: its type and, where that helps, its value."""
    return repr(value) if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"
