"""What of an Arrow filter the servers can test: from the expression that DuckDB gives a scan to a predicate.

Arrow tells of an expression only as Substrait, so that is read. The predicate may let more through than the filter
does, and never less: the scan tests the filter itself on what comes.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from keyhole.encoding.predicate_binding import bound
from keyhole.errors import MalformedRequest, ValueMismatch
from keyhole.model.predicates import Field, Predicate, field, is_nan
from keyhole.model.state import StateDescriptor
from keyhole.v1.arrow_filter_pb2 import ArrowExpression, ArrowFilter

# Arrow writes a call's arguments twice, so that each level of a filter doubles its message: at 12 a megabyte, at 20 two
# hundred. DuckDB nests an `or` of twenty terms so deep.
_MOST_DEPTH = 12
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_COMPARED = {"equal": "__eq__", "not_equal": "__ne__", "gt": "__gt__", "gte": "__ge__", "lt": "__lt__", "lte": "__le__"}
_ABOVE = ("gt", "gte")
_MIRRORED = {"gt": "lt", "lt": "gt", "gte": "lte", "lte": "gte"}


class Pushed(NamedTuple):
    """What the servers are asked for a filter.

    Attributes:
        where: None: they can test nothing of it.
        columns: All that the filter looks at; None: not known.
    """

    where: Predicate | None
    columns: frozenset[str] | None


class _NoPredicateError(Exception):
    """A part of a filter that servers can't test."""


def pushed(filter: pc.Expression, schema: pa.Schema, descriptor: StateDescriptor) -> Pushed:  # noqa: A002 - Arrow's word
    """What of a filter the servers can test.

    Args:
        schema: Of the entries; whose columns the filter names.
    """
    message = ArrowFilter()
    try:
        if _depth(filter) > _MOST_DEPTH:
            return Pushed(None, None)
        message.ParseFromString(bytes(filter.to_substrait(schema)))
    except (pa.ArrowException, NotImplementedError, UnicodeDecodeError, DecodeError):
        return Pushed(None, None)
    names = {of.extension_function.function_anchor: of.extension_function.name for of in message.extensions}
    reading = _FilterReading(names, schema, descriptor)
    expression = message.referred_expr[0].expression
    where = reading.superset(expression)
    return Pushed(where, frozenset(reading.columns(expression)))


def _depth(of: pc.Expression) -> int:
    """How deep its calls are nested: by its text, which is linear in what it has."""
    depth = most = 0
    for bracket in re.findall(r"[()]", _QUOTED.sub("", str(of))):
        depth += 1 if bracket == "(" else -1
        most = max(most, depth)
    return most


class _FilterReading:
    def __init__(self, functions: dict[int, str], schema: pa.Schema, descriptor: StateDescriptor) -> None:
        self._functions = functions
        self._schema = schema
        self._descriptor = descriptor

    def superset(self, of: ArrowExpression) -> Predicate | None:
        """A predicate that is true wherever the expression is; None: nothing is known of it."""
        name, parts = self._function(of)
        if name == "and":
            found = [part for part in map(self.superset, parts) if part is not None]
            return self._joined(found)
        try:
            return self._checked(self._exact(of))
        except (_NoPredicateError, MalformedRequest, ValueMismatch, OverflowError):
            return None

    def _joined(self, parts: list[Predicate]) -> Predicate | None:
        """As many of them as servers take in one predicate."""
        whole: Predicate | None = None
        for part in parts:
            with contextlib.suppress(MalformedRequest):
                whole = part if whole is None else self._checked(whole & part)
        return whole

    def _exact(self, of: ArrowExpression, *, negated: bool = False) -> Predicate:
        """True of whatever the expression is true of. Where `negated`, it is also false, and not null, of whatever the
        expression is false of.

        Raises:
            _NoPredicateError, MalformedRequest, ValueMismatch: There is none.
        """
        if of.HasField("singular_or_list"):
            listed = self._listed(of, negated=negated)
            # To Arrow null is in no list, and `not` of that is true; to servers it is null.
            return listed & self._field(of.singular_or_list.value).is_not_null() if negated else listed
        if of.HasField("if_then"):
            return self._null_where_null(of, negated=negated)
        name, parts = self._function(of)
        if name in ("and", "or") and len(parts) > 1:
            first, *others = [self._exact(part, negated=negated) for part in parts]
            for other in others:
                first = first & other if name == "and" else first | other
            return first
        if name == "not" and len(parts) == 1:
            return ~self._exact(parts[0], negated=not negated)
        if name in ("is_null", "is_not_null"):
            tested = self._field(parts[0])
            return tested.is_null() if name == "is_null" else tested.is_not_null()
        if name in _COMPARED and len(parts) == 2:
            left, right = parts
            if left.HasField("literal"):
                left, right, name = right, left, _MIRRORED.get(name, name)
            self._check_exact(left)
            if negated and name in _ABOVE and pa.types.is_floating(self._path(left)[1]):
                raise _NoPredicateError  # to Arrow NaN is not above anything, to servers it is
            value = _literal(right)
            if is_nan(value):
                raise _NoPredicateError  # to Arrow NaN is not equal to itself, to servers it is
            compared: Predicate = getattr(self._field(left), _COMPARED[name])(value)
            return compared
        raise _NoPredicateError

    def _null_where_null(self, of: ArrowExpression, *, negated: bool) -> Predicate:
        """Of `if column is not null then ... else null`, as DuckDB has its lists.

        Raises:
            _NoPredicateError: It is another choice: servers can make none.
        """
        last, branches = getattr(of.if_then, "else"), of.if_then.ifs
        name, tested = self._function(getattr(branches[0], "if"))
        null = last.HasField("literal") and last.literal.WhichOneof("literal_type") is None
        if len(branches) > 1 or name != "is_not_null" or not null:
            raise _NoPredicateError
        then = branches[0].then
        if then.HasField("singular_or_list") and tested == [then.singular_or_list.value]:
            return self._listed(then, negated=negated)  # to servers that is null by itself
        return self._exact(then, negated=negated) & self._field(tested[0]).is_not_null()

    def _listed(self, of: ArrowExpression, *, negated: bool) -> Predicate:
        self._check_exact(of.singular_or_list.value)
        values = [_literal(option) for option in of.singular_or_list.options]
        if negated and any(isinstance(value, float) and value == 0 for value in values):
            raise _NoPredicateError  # to Arrow 0.0 is not in a list that has -0.0, to servers it is
        return self._field(of.singular_or_list.value).is_in(values)

    def _checked(self, predicate: Predicate) -> Predicate:
        """Once of a whole: binding it looks at each of its values. Raises MalformedRequest, ValueMismatch."""
        bound(predicate, self._descriptor)
        return predicate

    def _check_exact(self, of: ArrowExpression) -> None:
        """Raises _NoPredicateError for a float: Arrow has it rounded to 32 bits, and not all that was stored is."""
        if of.HasField("selection") and pa.types.is_float32(self._path(of)[1]):
            raise _NoPredicateError

    def _function(self, of: ArrowExpression) -> tuple[str, list[ArrowExpression]]:
        if not of.HasField("scalar_function"):
            return "", []
        function = of.scalar_function
        return self._functions.get(function.function_reference, ""), [part.value for part in function.arguments]

    def _field(self, of: ArrowExpression) -> Field:
        if not of.HasField("selection"):
            raise _NoPredicateError
        path, _ = self._path(of)
        return field(*path)

    def _path(self, of: ArrowExpression) -> tuple[list[str], pa.DataType]:
        at, names = of.selection.direct_reference.struct_field, []
        column = self._schema.field(at.field)
        names.append(column.name)
        kind = column.type
        while at.HasField("child"):
            at = at.child.struct_field
            inner = kind.field(at.field)
            names.append(inner.name)
            kind = inner.type
        return names, kind

    def columns(self, of: ArrowExpression) -> set[str]:
        """All that the expression looks at."""
        if of.HasField("selection"):
            return {self._path(of)[0][0]}
        if of.HasField("singular_or_list"):
            return self.columns(of.singular_or_list.value)
        if of.HasField("cast"):
            return self.columns(of.cast.input)
        if of.HasField("if_then"):
            parts = [part for branch in of.if_then.ifs for part in (getattr(branch, "if"), branch.then)]
            return set().union(*map(self.columns, [*parts, getattr(of.if_then, "else")]))
        return set().union(*map(self.columns, self._function(of)[1]))


def _literal(of: ArrowExpression) -> Any:
    """The value. Raises _NoPredicateError: it is of a type that servers compare nothing with, or null."""
    literal = of.literal if of.HasField("literal") else None
    kind = None if literal is None else literal.WhichOneof("literal_type")
    match kind:
        case "boolean" | "i8" | "i16" | "i32" | "i64" | "fp32" | "fp64" | "string" | "binary":
            return getattr(literal, kind)
        case "date":
            return dt.date(1970, 1, 1) + dt.timedelta(days=literal.date)  # type: ignore[union-attr]
        case "timestamp_tz":
            return _EPOCH + dt.timedelta(microseconds=literal.timestamp_tz)  # type: ignore[union-attr]
        case "precision_timestamp_tz" | "precision_timestamp":
            of_kind = getattr(literal, kind)
            if of_kind.precision != 6:
                raise _NoPredicateError
            moment = _EPOCH + dt.timedelta(microseconds=of_kind.value)
            return moment if kind.endswith("tz") else moment.replace(tzinfo=None)
        case "timestamp":
            return _EPOCH.replace(tzinfo=None) + dt.timedelta(microseconds=literal.timestamp)  # type: ignore[union-attr]
        case "decimal":
            whole = int.from_bytes(literal.decimal.value, "little", signed=True)  # type: ignore[union-attr]
            digits = tuple(map(int, str(abs(whole))))
            return Decimal((int(whole < 0), digits, -literal.decimal.scale))  # type: ignore[union-attr]
    raise _NoPredicateError
