"""The names of value types, taken apart: "array<struct<a:int>>" is an array of structs of one field. Pure.

A type is named as Spark's `simpleString` names it, which writes the names of nested fields without quotes: any but
those that hold one of NAME_BREAKERS.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from keyhole.errors import ValueMismatch

NAME_BREAKERS = frozenset("<>:,()`")
"""What the name of a field in a struct can't hold."""

_TOKEN = re.compile(r"[^<>:,]+(?:\(\d+,\s*-?\d+\))?|[<>:,]")
_DIGITS = re.compile(r"\((\d+),\s*(-?\d+)\)")
_DECIMAL = re.compile(r"decimal\((\d+);(-?\d+)\)")


class TypeName(NamedTuple):
    """One type.

    Attributes:
        kind: "double", "decimal", "array", "map", "struct": whatever stands there, known or not.
        digits: Of a decimal: how many, and how many of them after the point.
        parts: Of an array its element, of a map its key and its value, of a struct its fields.
        names: Of a struct's fields, each another one.
    """

    kind: str
    digits: tuple[int, int] = (0, 0)
    parts: tuple[TypeName, ...] = ()
    names: tuple[str, ...] = ()


@functools.cache
def parsed(name: str) -> TypeName:
    """Takes a type's name apart.

    Raises:
        ValueMismatch: It is none.
    """
    parser = _Parser(name)
    found = parser.type()
    if parser.peek() is not None:
        raise not_stored(name)
    return found


def not_stored(name: str, why: str = "") -> ValueMismatch:
    """The error for a type that a state can't hold."""
    return ValueMismatch(f"a state can't hold values of type {name}{why and f': {why}'}; see docs/values.md", type=name)


def field_names_problem(names: tuple[str, ...] | list[str]) -> str | None:
    """Why a struct can't have fields of these names; None: it can."""
    if "" in names:
        return "a field of a struct needs a name, and the name of one is empty"
    for name in names:
        if NAME_BREAKERS & set(name):
            return f"its field name {name!r} holds a character that type names need ({' '.join('<>:,()`')})"
        if names.count(name) > 1:
            return f"two of its fields have the name {name!r}"
    return None


class _Parser:
    def __init__(self, name: str) -> None:
        self._name = name
        self._tokens = _TOKEN.findall(_DIGITS.sub(r"(\1;\2)", name))
        self._at = 0

    def peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self, expected: str | None = None) -> str:
        token = self.peek()
        if token is None or (expected is not None and token != expected):
            raise not_stored(self._name)
        self._at += 1
        return token

    def type(self) -> TypeName:
        kind = self._next()
        if digits := _DECIMAL.fullmatch(kind):
            return TypeName("decimal", (int(digits[1]), int(digits[2])))
        if kind == "array":
            return TypeName(kind, parts=self._in_brackets(1))
        if kind == "map":
            return TypeName(kind, parts=self._in_brackets(2))
        if kind == "struct":
            names, parts = self._fields()
            if (problem := field_names_problem(names)) is not None:
                raise not_stored(self._name, problem)
            return TypeName(kind, parts=parts, names=names)
        return TypeName(kind)

    def _in_brackets(self, count: int) -> tuple[TypeName, ...]:
        self._next("<")
        parts = [self.type()]
        for _ in range(count - 1):
            self._next(",")
            parts.append(self.type())
        self._next(">")
        return tuple(parts)

    def _fields(self) -> tuple[tuple[str, ...], tuple[TypeName, ...]]:
        self._next("<")
        names: list[str] = []
        parts: list[TypeName] = []
        while self.peek() != ">":
            if names:
                self._next(",")
            names.append("" if self.peek() == ":" else self._next())
            self._next(":")
            parts.append(self.type())
        self._next(">")
        return tuple(names), tuple(parts)
