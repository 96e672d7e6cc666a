"""Columns as a command line spells them. Pure.

amount                  a name, without a type
amount:decimal(9,2)     a name and a type: the first colon parts them
"net:eur":double        a name that has a colon, an equals sign or a quotation mark: a JSON string
amount=sum, "a=b"=sum   a column and its reducer
spent=sum:amount        a field, its reducer, and the column that it is made of
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from keyhole.errors import InvalidConfiguration

_QUOTE = '"'
_string = json.JSONDecoder().raw_decode
# The column is after the parentheses: in `max_by(a:b)` and `max_by(a=b)` the sign is in a field's name.
_REDUCER = r"(?P<reducer>\w+(?:\(.*\))?)(?P<colon>:(?P<column>.*))?"
_REDUCED = re.compile(rf"(?P<before>.*)={_REDUCER}", re.DOTALL)
_OF_A_QUOTED_COLUMN = re.compile(
    r'(?P<before>[^"]*?)=(?P<reducer>\w+(?:\([^"]*\))?)(?P<colon>:)(?P<column>"(?:[^"\\]|\\.)*"(?::.*)?)', re.DOTALL
)
_BEHIND_A_NAME = re.compile(rf"(?::(?P<type>.*))?={_REDUCER}", re.DOTALL)


class ReducedColumn(NamedTuple):
    """One column with its reducer.

    Attributes:
        field: The name that readers see.
        column: The name that the records have; the same, where none is given.
        type: Of the column; empty: none is given.
    """

    field: str
    reducer: str
    column: str
    type: str


def quoted(name: str) -> str:
    """How a column of that name is spelled where its bare name would be taken for something else."""
    return json.dumps(name, ensure_ascii=False)


def column_name(text: str) -> str:
    """A name by itself, as `--order-by` takes it: signs of any kind may stand in it bare.

    Raises:
        InvalidConfiguration: It begins with a quotation mark, and is no JSON string.
    """
    if not text.startswith(_QUOTE):
        return text
    name, rest = _quoted_name(text)
    if rest:
        raise _misspelled(text)
    return name


def column_and_type(text: str) -> tuple[str, str]:
    """Of `name` or `name:type`; the type is empty where there is none. Raises InvalidConfiguration likewise."""
    if not text.startswith(_QUOTE):
        name, _, kind = text.partition(":")
        return name, kind
    name, rest = _quoted_name(text)
    if rest and not rest.startswith(":"):
        raise _misspelled(text)
    return name, rest[1:]


def column_and_value(text: str) -> tuple[str, str] | None:
    """Of `name=value`, which the first equals sign parts; None: it is not of that form. Raises likewise."""
    if not text.startswith(_QUOTE):
        name, equals, value = text.partition("=")
    else:
        name, rest = _quoted_name(text)
        if rest and not rest.startswith("="):
            raise _misspelled(text)
        equals, value = rest[:1], rest[1:]
    return (name, value) if equals else None


def reduced_column(text: str) -> ReducedColumn:
    """Of `column=reducer` or `column:type=reducer`, or of `field=reducer:column` or `field=reducer:column:type`.

    Raises:
        InvalidConfiguration: It is none of these; or as above.
    """
    if text.startswith(_QUOTE):
        name, rest = _quoted_name(text)
        found = _BEHIND_A_NAME.fullmatch(rest)
        kind = found["type"] if found else None
    else:
        found = _OF_A_QUOTED_COLUMN.fullmatch(text) or _REDUCED.fullmatch(text)
        name, colon, kind = found["before"].partition(":") if found else ("", "", "")
        kind = kind if colon else None
    if found is None:
        raise InvalidConfiguration(
            f"{text!r} names no reducer: write column=reducer, as amount=sum, or field=reducer:column, as "
            f"spent=sum:amount. {_SPELLING}"
        )
    if not found["colon"]:
        return ReducedColumn(name, found["reducer"], name, kind or "")
    column, column_type = column_and_type(found["column"])
    if kind is not None or not column:
        raise InvalidConfiguration(f"{text!r} is not field=reducer:column or field=reducer:column:type. {_SPELLING}")
    return ReducedColumn(name, found["reducer"], column, column_type)


_SPELLING = """A name that has : or = in it is written as a JSON string: '"net:eur"=sum'"""


def _quoted_name(text: str) -> tuple[str, str]:
    try:
        name, end = _string(text)
    except ValueError:
        raise _misspelled(text) from None
    return name, text[end:]


def _misspelled(text: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"column {text!r} begins with a quotation mark and is no JSON string with a type or a reducer behind it: "
        f'write a name that has : or = or " in it as \'"net:eur":double\''
    )
