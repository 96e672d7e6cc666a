"""Protobuf's messages as values in the forms that JSON has, by the schema that wrote them. Needs grpcio-tools.

    message Order { string customer = 1; optional int64 amount = 2; google.protobuf.Timestamp at = 3; }
    ->  {"customer": "c1", "amount": null, "at": 1763719200000000}

protoc reads the schema (keyhole.feed.registry.protoc), Google's library the messages. It refuses what is nested more
than a hundred times. What the values of a message would take is reckoned before they are made
(keyhole.feed.registry.protobuf_sizes).
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from keyhole.encoding.value_types import json_float
from keyhole.errors import MalformedRequest, ValueMismatch
from keyhole.feed.connect import decimal_text
from keyhole.feed.registry.allowance import Allowance
from keyhole.feed.registry.protobuf_sizes import Layouts, varint
from keyhole.feed.registry.protoc import compiled

_Form = Callable[[Any], Any]

_MOST_INDEXES = 100
_UNREADABLE = (DecodeError, ValueError, IndexError, OverflowError, RecursionError, TypeError, AttributeError)


class _Type(NamedTuple):
    """A type of message: what makes one of bytes, what makes values of it, and how large it may become."""

    made: type[Message]
    read: _Form
    layouts: Layouts


class ProtobufSchema:
    """The messages of a schema. Thread-safe.

    Args:
        text: Of the .proto.
        references: Names and texts of the files that it imports.

    Raises:
        MalformedRequest: It can't be used; the message says why.
        RegistryAway: It can't be known now.
    """

    def __init__(self, text: str, references: Sequence[tuple[str, str]] = ()) -> None:
        files = compiled(text, references)
        self._pool = DescriptorPool()
        self._main = files[-1]
        self._types: dict[tuple[int, ...], _Type] = {}
        if not self._main.message_type:
            raise MalformedRequest("it has no message")
        try:
            for file in files:
                self._pool.AddSerializedFile(file.SerializeToString())
            self._types[0,] = self._type((0,))
        except Exception as error:  # noqa: BLE001 - a schema is anybody's; the library raises what Python does
            raise MalformedRequest(f"it is no Protobuf schema that is read here ({type(error).__name__})") from None

    def whole(self, data: bytes, start: int, what: str) -> dict[str, Any]:
        """The message that stands from there to the end, behind the place of its type within the schema.

        Raises:
            MalformedRequest: It is none, or too large; the message quotes nothing of it.
        """
        try:
            indexes, at = _indexes(data, start)
            of = self._types.get(indexes)
            if of is None:
                of = self._types[indexes] = self._type(indexes)
            of.layouts.check(data, at, Allowance(what))
            message = of.made.FromString(data[at:])
            if not of.made.IsInitialized(message):  # by the type, as that may be the name of a field
                raise MalformedRequest(f"{what} lacks a field that its Protobuf schema requires")
            found: dict[str, Any] = of.read(message)
        except _UNREADABLE:
            raise MalformedRequest(f"{what} is not what its Protobuf schema says") from None
        except ValueMismatch as error:
            raise MalformedRequest(error.message) from None
        return found

    def _type(self, indexes: Sequence[int]) -> _Type:
        """Raises IndexError: there is none at this place."""
        names = [self._main.package] if self._main.package else []
        inner: Sequence[DescriptorProto] = self._main.message_type
        for index in indexes:
            names.append(inner[index].name)
            inner = inner[index].nested_type
        of = self._pool.FindMessageTypeByName(".".join(names))
        return _Type(GetMessageClass(of), _Forms().fields(of), Layouts(of))


def _indexes(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """The place of a type: in the file, in the message that it stands in, and so on."""
    count, at = _number(data, at)
    if not count:
        return (0,), at  # so the first one is written, as most are
    if not 0 < count <= _MOST_INDEXES:
        raise ValueError("no place of a type")
    found = []
    for _ in range(count):
        index, at = _number(data, at)
        if index < 0:
            raise ValueError("no place of a type")
        found.append(index)
    return tuple(found), at


def _number(data: bytes, at: int) -> tuple[int, int]:
    number, at = varint(data, at)
    return (number >> 1) ^ -(number & 1), at


class _Forms:
    """Makes what makes values of messages, for a type and all those within it."""

    def __init__(self) -> None:
        self._made: dict[str, _Form] = {}

    def fields(self, of: Descriptor) -> _Form:
        """A message as its fields by name, whatever its type is."""
        made = self._made.get(of.full_name)
        if made is not None:
            return made
        fields: list[tuple[str, _Form]] = []

        def read(message: Any) -> dict[str, Any]:
            return {name: value(message) for name, value in fields}

        self._made[of.full_name] = read  # before its fields: a type may contain itself
        fields += [(field.name, self._field(of, field)) for field in of.fields]
        return read

    def _field(self, of: Descriptor, field: FieldDescriptor) -> _Form:
        """From a message to what one of its fields comes to."""
        get, form = attrgetter(field.name), self._form(field)
        if field.is_repeated:
            many = self._many(field)
            return lambda message: many(get(message))
        if not field.has_presence:
            return get if form is None else lambda message: form(get(message))
        # By the type, not by the message: there it could be a field of this name.
        has: Callable[[Any, str], bool] = GetMessageClass(of).HasField
        name, or_else = field.name, self._default(field)
        if form is None:
            return lambda message: get(message) if has(message, name) else or_else
        return lambda message: form(get(message)) if has(message, name) else or_else

    def _default(self, field: FieldDescriptor) -> Any:
        """What a reader sees of a field that is not in the message: null, or what the schema says itself."""
        if not field.has_default_value:
            return None
        return (self._form(field) or _itself)(field.default_value)

    def _many(self, field: FieldDescriptor) -> _Form:
        entry = field.message_type
        if entry is None or not entry.GetOptions().map_entry:
            of_one = self._form(field)
            return list if of_one is None else lambda values: [of_one(value) for value in values]
        key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
        form = self._form(value) or _itself
        # In an order: a map has none, and what a record comes to must be the same each time that it is read.
        if key.type == FieldDescriptor.TYPE_STRING:
            return lambda values: {name: form(values[name]) for name in sorted(values)}
        return lambda values: [[name, form(values[name])] for name in sorted(values)]

    def _form(self, field: FieldDescriptor) -> _Form | None:
        """Of one value; None: it is as it comes."""
        if field.enum_type is not None:
            names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
            return lambda number: names.get(number, number)
        of = field.message_type
        if of is None:
            return _SCALARS.get(field.type)
        # By its file, too: a schema may call a type of its own by such a name.
        known = _KNOWN.get((of.file.name, of.full_name))
        if known is not None:
            return known
        if of.file.name == "google/protobuf/wrappers.proto":
            get, form = attrgetter("value"), self._form(of.fields_by_name["value"])
            return get if form is None else lambda message: form(get(message))
        return self.fields(of)


def _itself(value: Any) -> Any:
    return value


def _bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


_SCALARS: Mapping[int, _Form] = MappingProxyType(
    {
        FieldDescriptor.TYPE_BYTES: _bytes,
        FieldDescriptor.TYPE_FLOAT: json_float,
        FieldDescriptor.TYPE_DOUBLE: json_float,
    }
)

_EPOCH = dt.date(1970, 1, 1).toordinal()


def _micros(moment: Any) -> int:
    """Of a Timestamp or a Duration, rounded down."""
    nanos: int = moment.seconds * 1_000_000_000 + moment.nanos
    return nanos // 1000


def _days(date: Any) -> int:
    return dt.date(date.year, date.month, date.day).toordinal() - _EPOCH


def _micros_of_day(time: Any) -> int:
    micros: int = ((time.hours * 60 + time.minutes) * 60 + time.seconds) * 1_000_000 + time.nanos // 1000
    return micros


def _decimal(decimal: Any) -> str:
    return decimal_text(decimal.value, decimal.scale)


_KNOWN: Mapping[tuple[str, str], _Form] = MappingProxyType(
    {
        ("google/protobuf/timestamp.proto", "google.protobuf.Timestamp"): _micros,
        ("google/protobuf/duration.proto", "google.protobuf.Duration"): _micros,
        ("google/type/date.proto", "google.type.Date"): _days,
        ("google/type/timeofday.proto", "google.type.TimeOfDay"): _micros_of_day,
        ("confluent/type/decimal.proto", "confluent.type.Decimal"): _decimal,
    }
)
"""By file and name, the types that a state has a type of its own for."""
