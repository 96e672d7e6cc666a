"""Values that come as JSON, in the forms that docs/values.md gives: the inverse of ValueType.to_json. Pure.

    double       12.5, "NaN"                    decimal(9,2)   "1.50", 1.5
    timestamp    "2026-11-21T10:00:00+00:00", 1763719200000000 (microseconds)
    binary       "AP/+" (base64)                struct<a:int>  {"a": 1}, [1]

Each type takes what `to_json` writes of it, and what SQL makes of it more easily: numbers for times, an object for a
map. What fits no form is refused without being quoted: it may be a secret.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any

import msgspec

from keyhole.encoding.key_text import spelled_whole
from keyhole.encoding.row_codec import encode_row
from keyhole.encoding.value_types import DAYS, MICROS, Convert, optional, value_type
from keyhole.errors import KeyMismatch, NullKey, ValueMismatch
from keyhole.hints import ready
from keyhole.model.state import KeyColumn, StateDescriptor, ValueSchema
from keyhole.model.type_names import TypeName, parsed

_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_FLOAT32 = struct.Struct("f")
_DECIMAL = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
# So many digits come through a float of 64 bits unchanged, whatever they are.
_EXACT_DIGITS = 15


def _float(value: Any) -> Any:
    return _FLOATS.get(value, value) if type(value) is str else value


def _float32(value: Any) -> Any:
    """As Spark holds it: of 32 bits."""
    found = _float(value)
    # As a float first: a whole number of 400 digits is an OverflowError there, and struct's own error otherwise.
    return _FLOAT32.unpack(_FLOAT32.pack(float(found)))[0] if type(found) in (float, int) else found


def _decimals(scale: int) -> Convert:
    # What a float of JSON's text may have lost is behind these digits.
    exact = 10.0 ** (_EXACT_DIGITS - scale)

    def decimal(value: Any) -> Any:
        if type(value) is str and _DECIMAL.fullmatch(value):
            found = Decimal(value)
        elif type(value) is float and abs(value) < exact:
            found = Decimal(repr(value))
        else:
            return value if type(value) is int else None
        return found or abs(found)  # there is no zero below zero

    return decimal


def _binary(value: Any) -> Any:
    try:
        return base64.b64decode(value, validate=True) if type(value) is str else None
    except binascii.Error:
        return None


def _date(value: Any) -> Any:
    return date.fromisoformat(value) if type(value) is str else None


def _timestamp(value: Any) -> Any:
    if type(value) is not str:
        return None
    moment = datetime.fromisoformat(value)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _timestamp_ntz(value: Any) -> Any:
    return datetime.fromisoformat(value) if type(value) is str else None


_PYTHON: Mapping[str, Convert] = {
    "float": _float32,
    "double": _float,
    "binary": _binary,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
}
"""From JSON to what a person would give in Python: of the other types JSON has that already."""

_WHOLE_NUMBERS = frozenset({"tinyint", "smallint", "int", "bigint"})

_NUMBERS: Mapping[str, range] = {"date": DAYS, "timestamp": MICROS, "timestamp_ntz": MICROS}
"""Of types that may also stand as they are stored: days or microseconds since 1970."""


@functools.cache
def json_reader(name: str) -> Convert:
    """From a value of this type as JSON holds it, other than null, to what MessagePack can hold.

    What it returns raises ValueError or OverflowError where the value has no form of the type.

    Raises:
        ValueMismatch: No such type, or one that a state can't hold.
    """
    value_type(name)
    return _reader(parsed(name))


def _reader(of: TypeName) -> Convert:
    match of.kind:
        case "array":
            return _array(*_parts(of))
        case "map":
            return _map(of.parts[0].kind, *_parts(of))
        case "struct":
            return _struct(of.names, _parts(of))
    return _scalar(of.kind, f"decimal({of.digits[0]},{of.digits[1]})" if of.kind == "decimal" else of.kind)


def _parts(of: TypeName) -> list[Convert]:
    return [_reader(part) for part in of.parts]


def _scalar(kind: str, name: str) -> Convert:
    from_given, to_python, numbers = value_type(name).from_given, _PYTHON.get(kind), _NUMBERS.get(kind)
    if kind == "decimal":
        to_python = _decimals(parsed(name).digits[1])
    if to_python is None:
        return from_given

    def read(value: Any) -> Any:
        if numbers is not None and type(value) is int and value in numbers:
            return value
        return from_given(to_python(value))

    return read


def _array(element: Convert) -> Convert:
    each = optional(element)

    def read(value: Any) -> Any:
        if type(value) is not list:
            raise ValueError("no array")
        return [each(one) for one in value]

    return read


def _map(key_kind: str, key: Convert, value: Convert) -> Convert:
    """Pairs, or an object: there, keys are text, which a string is, and a whole number can be read from."""
    on_value = optional(value)
    from_text: Callable[[str], Any] | None = None
    if key_kind == "string":
        from_text = str
    elif key_kind in _WHOLE_NUMBERS:
        from_text = spelled_whole

    def read(given: Any) -> Any:
        if type(given) is dict and from_text is not None:
            pairs = [(key(from_text(k)), on_value(v)) for k, v in given.items()]
        elif type(given) is list and all(type(pair) is list and len(pair) == 2 for pair in given):
            pairs = [(key(k), on_value(v)) for k, v in given]
        else:
            raise ValueError("no array of pairs")
        # As Spark compares them: there is one NaN, and one zero.
        if len({repr(0.0 if k == 0 and type(k) is float else k) for k, _ in pairs}) < len(pairs):
            raise ValueError("a key twice")
        return pairs

    return read


def _struct(names: Sequence[str], fields: Sequence[Convert]) -> Convert:
    """An object, where a field that isn't there is null (Spark's to_json leaves nulls out), or all fields in order."""
    by_name = {name: optional(field) for name, field in zip(names, fields, strict=True)}

    def read(given: Any) -> Any:
        if type(given) is list and len(given) == len(names):
            return [field(value) for field, value in zip(by_name.values(), given, strict=True)]
        if type(given) is not dict or not given.keys() <= by_name.keys():
            raise ValueError("no object of these fields")
        return [field(given.get(name)) for name, field in by_name.items()]

    return read


def key_reader(columns: Sequence[KeyColumn]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """From the columns of a key as JSON holds them, in the forms of values, to what a StateCodec takes.

    What it returns raises KeyMismatch where they don't fit, NullKey where one is null.
    """
    kinds = [(column, json_reader(column.type), optional(value_type(column.type).to_python)) for column in columns]

    def read(given: list[Any]) -> tuple[Any, ...]:
        if len(given) != len(kinds):
            wanted = ", ".join(f"{column.name} {column.type}" for column in columns)
            raise KeyMismatch(f"a key has {len(given)} columns, and the state's has {len(kinds)}: {wanted}")
        found = []
        for (column, to_stored, to_python), value in zip(kinds, given, strict=True):
            if value is None:
                raise NullKey(f"key column {column.name} is null; a state has no null keys", column=column.name)
            try:
                found.append(to_python(to_stored(value)))
            except (ValueError, OverflowError, ArithmeticError):
                # Not as the cause: it may hold the key.
                raise KeyMismatch(
                    f"key column {column.name} is a {column.type}, and what came is none in any of its forms; see "
                    "docs/values.md",
                    column=column.name,
                    type=column.type,
                ) from None
        return tuple(found)

    return read


_QUICK: Mapping[str, Any] = {
    "boolean": bool,
    **{
        name: Annotated[int, msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]
        for name, bits in (("tinyint", 8), ("smallint", 16), ("int", 32), ("bigint", 64))
    },
    "double": float,
}
"""Types whose values msgspec checks as `json_reader` does, in one call for a whole row."""


def _quick(schema: ValueSchema) -> Callable[[list[Any]], Sequence[Any]] | None:
    """The fields as they are stored, where each has the form that is stored; None: not all types are among these."""
    if not schema.fields or any(field.type not in _QUICK for field in schema.fields):
        return None
    types = [_QUICK[field.type] | None if field.nullable else _QUICK[field.type] for field in schema.fields]
    row: Any = tuple.__class_getitem__(tuple(types))
    ready(row)
    return functools.partial(msgspec.convert, type=row)


class JsonRows:
    """The rows of one state, as they come in JSON: one element per field. Thread-safe.

    Raises:
        ValueMismatch: A type of the state's can't be held.
    """

    def __init__(self, descriptor: StateDescriptor) -> None:
        self._state = descriptor.path
        schemas = (*descriptor.earlier, descriptor.value)
        self._readers = {schema.version: self._reader(schema) for schema in schemas}

    def _reader(self, schema: ValueSchema) -> Callable[[list[Any]], Sequence[Any]]:
        fields = [(field.name, field.type, field.nullable, json_reader(field.type)) for field in schema.fields]
        quick = _quick(schema)

        def read(values: list[Any]) -> Sequence[Any]:
            if quick is not None:
                try:
                    return quick(values)
                except msgspec.ValidationError:
                    pass  # it comes in another form; or it is refused below, by name
            if len(values) != len(fields):
                raise ValueMismatch(
                    f"a row of schema version {schema.version} of state {self._state} has {len(fields)} fields, and "
                    f"{len(values)} came",
                    state=self._state,
                )
            found: list[Any] = []
            for (name, kind, nullable, convert), value in zip(fields, values, strict=True):
                if value is None:
                    if not nullable:
                        raise ValueMismatch(f"field {name} of state {self._state} is null, and may not be", field=name)
                    found.append(None)
                    continue
                try:
                    found.append(convert(value))
                except (ValueError, OverflowError, ArithmeticError):
                    # Not as the cause: it may hold the value.
                    raise ValueMismatch(
                        f"field {name} of state {self._state} is a {kind}, and what came is none in any of its forms; "
                        "see docs/values.md",
                        field=name,
                    ) from None
            return found

        return read

    def stored(self, version: int, values: list[Any]) -> Sequence[Any]:
        """The fields as they are stored, in a row of that schema version.

        Raises:
            ValueMismatch: Another number of fields, a value that isn't of its type, or an unknown version.
        """
        read = self._readers.get(version)
        if read is None:
            raise ValueMismatch(
                f"state {self._state} has no schema version {version}; it has {', '.join(map(str, self._readers))}",
                state=self._state,
                version=version,
            )
        return read(values)

    def row(self, version: int, values: list[Any]) -> bytes:
        """A stored row of that schema version. Raises as `stored`."""
        return encode_row(version, self.stored(version, values))
