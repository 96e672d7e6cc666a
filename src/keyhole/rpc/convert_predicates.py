"""Predicates as the messages of keyhole.v1, and back. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation

from keyhole.encoding.value_types import date_of_days, days_of, micros_of, naive_time_of_micros, time_of_micros
from keyhole.errors import MalformedRequest
from keyhole.model.predicates import (
    And,
    ComparedBy,
    Comparison,
    FieldPath,
    FieldPlace,
    IsNull,
    Not,
    OneOf,
    Or,
    Predicate,
    PredicateValue,
    checked,
)
from keyhole.model.selection import Selection, selection
from keyhole.v1 import predicate_pb2 as pb
from keyhole.v1 import query_pb2

_OPERATORS = {of: pb.ComparisonOperator.Value(f"COMPARISON_OPERATOR_{of.name}") for of in ComparedBy}
_OPERATORS_BACK = {number: of for of, number in _OPERATORS.items()}
_PLACES = {of: pb.FieldPlace.Value(f"FIELD_PLACE_{of.name}") for of in FieldPlace}
_PLACES_BACK = {number: of for of, number in _PLACES.items()}
_WHOLE = range(-(1 << 63), 1 << 63)
_MOST_DIGITS = 100
_TIMES = ("date_days", "timestamp_micros", "timestamp_ntz_micros")


def predicate_to_proto(predicate: Predicate) -> pb.Predicate:
    """The predicate as a message.

    Raises:
        MalformedRequest: It is too large, or a value of it has no place in one.
    """
    return _to_proto(checked(predicate))


def predicate_from_proto(message: pb.Predicate) -> Predicate:
    """The predicate of a message. Whether it fits a state, predicate_binding.bound says.

    Raises:
        MalformedRequest: It is none, is too large, or is of a kind that is not known here.
    """
    return checked(_from_proto(message))


def field_to_proto(path: FieldPath) -> pb.FieldPath:
    """The field's name as a message."""
    return pb.FieldPath(names=(path.name, *path.inner), place=_PLACES[path.place])


def field_from_proto(message: pb.FieldPath) -> FieldPath:
    """The field that a message names. Raises MalformedRequest: It names none."""
    if not message.names or message.place not in _PLACES_BACK:
        raise MalformedRequest("a field has no name, or a place that is not known here")
    return FieldPath(message.names[0], tuple(message.names[1:]), _PLACES_BACK[message.place])


def _to_proto(predicate: Predicate) -> pb.Predicate:
    match predicate:
        case And(parts):
            return pb.Predicate(all=pb.Predicates(parts=map(_to_proto, parts)))
        case Or(parts):
            return pb.Predicate(any=pb.Predicates(parts=map(_to_proto, parts)))
        case Not(part):
            return pb.Predicate(negated=_to_proto(part))
        case IsNull(path):
            return pb.Predicate(is_null=field_to_proto(path))
        case OneOf(path, values):
            listed = pb.OneOf(field=field_to_proto(path), values=[_value_to_proto(path, value) for value in values])
            return pb.Predicate(one_of=listed)
        case Comparison(path, operator, value):
            compared = pb.Comparison(
                field=field_to_proto(path), operator=_OPERATORS[operator], value=_value_to_proto(path, value)
            )
            return pb.Predicate(comparison=compared)
    raise MalformedRequest(f"a {type(predicate).__name__} is no predicate of Keyhole's")


def _from_proto(message: pb.Predicate) -> Predicate:
    match message.WhichOneof("kind"):
        case "all":
            return And(tuple(map(_from_proto, message.all.parts)))
        case "any":
            return Or(tuple(map(_from_proto, message.any.parts)))
        case "negated":
            return Not(_from_proto(message.negated))
        case "is_null":
            return IsNull(field_from_proto(message.is_null))
        case "one_of":
            path = field_from_proto(message.one_of.field)
            return OneOf(path, tuple(_value_from_proto(path, value) for value in message.one_of.values))
        case "comparison":
            path, operator = field_from_proto(message.comparison.field), message.comparison.operator
            if operator in _OPERATORS_BACK:
                return Comparison(path, _OPERATORS_BACK[operator], _value_from_proto(path, message.comparison.value))
    raise MalformedRequest("a predicate, or its operator, is empty, or of a kind that is not known here")


def _value_to_proto(path: FieldPath, value: PredicateValue) -> pb.PredicateValue:
    match value:
        case bool():
            return pb.PredicateValue(boolean=value)
        case str():
            try:
                return pb.PredicateValue(string=value)
            except UnicodeEncodeError:  # a half of a surrogate pair; not as the cause, which holds the value
                pass
            raise MalformedRequest(f"field {str(path)!r} is compared with a text that is not Unicode")
        case bytes():
            return pb.PredicateValue(binary=value)
        case int() if value in _WHOLE:
            return pb.PredicateValue(integer=value)
        case int() | Decimal():
            return pb.PredicateValue(decimal=_digits(path, value))
        case float():
            return pb.PredicateValue(floating=value)
        case datetime() if value.utcoffset() is None:
            return pb.PredicateValue(timestamp_ntz_micros=micros_of(value.replace(tzinfo=UTC)))
        case datetime():
            return pb.PredicateValue(timestamp_micros=micros_of(value))
        case _:
            return pb.PredicateValue(date_days=days_of(value))


def _value_from_proto(path: FieldPath, message: pb.PredicateValue) -> PredicateValue:
    which = message.WhichOneof("value")
    try:
        match which:
            case "date_days":
                return date_of_days(message.date_days)
            case "timestamp_micros":
                return time_of_micros(message.timestamp_micros)
            case "timestamp_ntz_micros":
                return naive_time_of_micros(message.timestamp_ntz_micros)
            case "decimal":
                if len(message.decimal) <= _MOST_DIGITS and message.decimal.lstrip("-").replace(".", "", 1).isdigit():
                    return Decimal(message.decimal)
            case str():
                value: PredicateValue = getattr(message, which)
                return value
    except (ValueError, OverflowError, InvalidOperation):
        pass
    what = (
        "a date or a time of no year from 1 to 9999 in UTC"
        if which in _TIMES
        else "a value that is missing or out of range"
    )
    raise MalformedRequest(f"field {str(path)!r} is compared with {what} ({which})")


def _digits(path: FieldPath, value: int | Decimal) -> str:
    number = Decimal(value)
    spelled = format(number, "f") if number.is_finite() and abs(number.adjusted()) < _MOST_DIGITS else ""
    if not spelled or len(spelled) > _MOST_DIGITS:
        raise MalformedRequest(
            f"field {str(path)!r} is compared with a number that is not finite, or has more than {_MOST_DIGITS} digits"
        )
    return spelled


def selection_to_proto(selection: Selection) -> query_pb2.Selection | None:
    """The selection of a request; None: everything is wanted. Raises as `predicate_to_proto`."""
    if selection.is_all:
        return None
    return query_pb2.Selection(
        where=None if selection.where is None else predicate_to_proto(selection.where),
        fields=selection.fields or (),
        keys_only=selection.keys_only,
    )


def selection_from_proto(message: query_pb2.Selection) -> Selection:
    """What a request selects; of an empty message everything. Raises as `predicate_from_proto`."""
    where = predicate_from_proto(message.where) if message.HasField("where") else None
    return selection(where, message.fields or None, keys_only=message.keys_only)
