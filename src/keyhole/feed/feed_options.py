"""What a feeder is given of its state and of the topic's records, and the state's descriptor that follows. Pure.

    key=columns("customer"), value=columns("amount:decimal(9,2)"), reducers=("sum",)    -> a reducing state

A column is `name` or `name:type`, by Spark's names of types (keyhole.feed.column_text has all that can be written). It
stands in the records under its name.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.indexed_fields import indexed_fields
from keyhole.encoding.reducers import parse, problems, reduced
from keyhole.encoding.value_types import value_type
from keyhole.errors import InvalidConfiguration, ValueMismatch
from keyhole.feed.column_text import column_and_type, quoted, reduced_column
from keyhole.feed.deleting_records import NO_ROWS, Deletions
from keyhole.model.names import checked_name
from keyhole.model.state import (
    FED_KEY_GROUPS,
    MAX_KEY_GROUPS,
    KeyColumn,
    KeyType,
    StateDescriptor,
    StateKind,
    ValueField,
    ValueSchema,
)

_MOST_TTL_MS = 1000 * 365 * 86_400_000
_MOST_LENGTH = (1 << 63) - 1

_RESERVED_PREFIX = "_keyhole_"
_WITHOUT_ORDER = ("array", "map", "struct")
_SUMMED = ("sum", "min", "max")
_BOOLEANS = ("any", "all")
# What can be taken back of a reduced field: all else would need the rows that are left.
_INVERTIBLE = ("sum", "count")


class RecordFormat(enum.StrEnum):
    """How the records of a source topic are read."""

    JSON = "json"
    DEBEZIUM = "debezium"
    AVRO = "avro"
    DEBEZIUM_AVRO = "debezium-avro"
    PROTOBUF = "protobuf"

    @property
    def of_changes(self) -> bool:
        """Whether they are Debezium's envelopes, and not a row each."""
        return self in (RecordFormat.DEBEZIUM, RecordFormat.DEBEZIUM_AVRO)

    @property
    def of_registry(self) -> bool:
        """Whether their schemas are in a schema registry."""
        return self in (RecordFormat.AVRO, RecordFormat.DEBEZIUM_AVRO, RecordFormat.PROTOBUF)


@dataclass(frozen=True)
class FeedOptions:
    """What becomes of a topic's records.

    Attributes:
        key: The columns of the key.
        value: The columns of the value, as they stand in the records.
        reducers: The name of one for each of `value`; empty: the last row of a key counts.
        map_key: The columns of the map key; with it, and without reducers, the state is a map.
        order_by: Name of the value column whose highest value wins; empty: the last row in the topic does.
        max_length: The state is a list of the last so many rows of a key; 0: it is none.
        ttl_ms: See StateDescriptor.
        columns: The column of the records that each of `value` is made of; empty: they are called alike.
        index: See StateDescriptor.
        keep_deleted_ms: See StateDescriptor.
        deletions: Which rows delete, and what a deletion without an order does.
    """

    application: str
    state: str
    key: tuple[KeyColumn, ...]
    value: tuple[ValueField, ...]
    reducers: tuple[str, ...] = ()
    map_key: tuple[KeyColumn, ...] = ()
    order_by: str = ""
    max_length: int = 0
    ttl_ms: int = 0
    key_groups: int = FED_KEY_GROUPS
    format: RecordFormat = RecordFormat.JSON
    columns: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    keep_deleted_ms: int = 0
    deletions: Deletions = NO_ROWS

    @property
    def kind(self) -> StateKind:
        """Of the state, as the options make it."""
        if self.reducers:
            return StateKind.REDUCING
        if self.max_length:
            return StateKind.LIST
        return StateKind.MAP if self.map_key else StateKind.VALUE


def key_columns(texts: Sequence[str]) -> tuple[KeyColumn, ...]:
    """Columns of a key, or of a map key, from `name` (a string) or `name:type`.

    Raises:
        InvalidConfiguration: One is of a type that can't be a key, or can't be read.
    """
    return tuple(_key_column(*column_and_type(text)) for text in texts)


def value_columns(texts: Sequence[str]) -> tuple[ValueField, ...]:
    """Columns of a value, from `name` (a string) or `name:type`. Raises InvalidConfiguration: one can't be read."""
    return tuple(ValueField(name, kind or "string") for name, kind in map(column_and_type, texts))


def reduced_columns(texts: Sequence[str]) -> tuple[tuple[ValueField, ...], tuple[str, ...]]:
    """Columns with their reducers, from `name=reducer` or `name:type=reducer`: `amount:decimal(9,2)=sum`.

    A field with a name of its own is `field=reducer:column` or `field=reducer:column:type`: `spent=sum:amount`. Without
    a type a column is a double where it is summed or compared, a boolean for `any` and `all`, else a string.

    Raises:
        InvalidConfiguration: There is no reducer in it.
    """
    reductions = list(map(reduced_column, texts))
    fields = (ValueField(of.field, of.type or _default_type(of.reducer)) for of in reductions)
    return tuple(fields), tuple(of.reducer for of in reductions)


def source_columns(texts: Sequence[str]) -> tuple[str, ...]:
    """The column of the records that each of `reduced_columns` is made of; empty: all are called alike. Raises
    likewise.
    """
    reductions = list(map(reduced_column, texts))
    return tuple(of.column for of in reductions) if any(of.column != of.field for of in reductions) else ()


def describe(options: FeedOptions) -> StateDescriptor:
    """The state's descriptor, without a topic id.

    Raises:
        InvalidConfiguration: The options contradict each other, or themselves.
        ValueMismatch: A column is of a type that can't be stored or reduced, or that there can be no index of.
    """
    checked_name("the application's name", options.application, "choose another one")
    checked_name("the state's name", options.state, "choose another one")
    for problem in _problems(options):
        raise InvalidConfiguration(f"state {options.state!r}: {problem}", state=options.state)
    fields = options.value
    for field in fields:
        _check_type(field)
    if options.reducers:
        fields = tuple(_reduced(field, name) for field, name in zip(fields, options.reducers, strict=True))
    descriptor = StateDescriptor(
        application=options.application,
        state=options.state,
        query=options.state,
        kind=options.kind,
        key_groups=options.key_groups,
        key=options.key,
        value=ValueSchema(1, fields),
        order_by=options.order_by,
        reducers=options.reducers,
        map_key=options.map_key,
        ttl_ms=options.ttl_ms,
        max_length=options.max_length,
        keep_deleted_ms=options.keep_deleted_ms,
        index=options.index,
    )
    indexed_fields(descriptor)
    StateCodec(descriptor)  # refuses what no reader could read
    return descriptor


def _key_column(name: str, kind: str) -> KeyColumn:
    try:
        return KeyColumn(name, KeyType(kind or "string"))
    except ValueError:
        raise InvalidConfiguration(
            f"column {name!r} is of type {kind}, which can't be a key: take one of {', '.join(KeyType)}"
            f"{_other_name(name, kind)}"
        ) from None


def _other_name(name: str, kind: str) -> str:
    """What may have been meant by a type that is none."""
    whole = f"{name}:{kind}"
    return f". A column whose name is {whole!r} is written as the JSON string '{quoted(whole)}'"


def _check_type(field: ValueField) -> None:
    try:
        value_type(field.type)
    except ValueMismatch as error:
        raise ValueMismatch(
            f"column {field.name!r}: {error.message}{_other_name(field.name, field.type)}",
            column=field.name,
            type=field.type,
        ) from None


def _default_type(reducer: str) -> str:
    return "double" if reducer in _SUMMED else "boolean" if reducer in _BOOLEANS else "string"


def _reduced(field: ValueField, reducer: str) -> ValueField:
    made = reduced(field, reducer)
    if made is None:
        raise ValueMismatch(
            f"{reducer} can't reduce column {field.name!r} of type {field.type}; it takes "
            f"{parse(reducer).reducer.takes}",
            column=field.name,
            type=field.type,
        )
    return made


def _problems(options: FeedOptions) -> Iterator[str]:
    """What is wrong, in an order in which each may take for granted what is before it."""
    if options.state == "control":
        yield "no state may be called control: the control topic has this name"
    if not options.key:
        yield "it has no key column; name one"
    if not options.value:
        yield "it has no value column; name one, or a reducer"
    names = [column.name for column in (*options.key, *options.map_key)] + [field.name for field in options.value]
    for name in names:
        if not name or "\0" in name or name.lower().startswith(_RESERVED_PREFIX):
            yield f"no column can be called {name!r}"
        if names.count(name) > 1:
            yield f"column {name!r} is named twice"
    if not 1 <= options.key_groups <= MAX_KEY_GROUPS:
        yield f"key_groups is {options.key_groups}; it must be from 1 to {MAX_KEY_GROUPS}"
    if options.ttl_ms < 0 or options.max_length < 0:
        yield "neither ttl_ms nor max_length can be below 0"
    if options.ttl_ms > _MOST_TTL_MS:
        yield f"a ttl is at most {_MOST_TTL_MS // 1000} seconds; leave it out, and rows never expire"
    if options.keep_deleted_ms > _MOST_TTL_MS:
        yield f"deletions are remembered for at most {_MOST_TTL_MS // 1000} seconds"
    if options.max_length > _MOST_LENGTH:
        yield f"max_length is {options.max_length}; it is at most {_MOST_LENGTH}"
    if options.order_by and options.order_by not in {field.name for field in options.value}:
        yield f"order_by names {options.order_by!r}, which is no value column"
    for field in options.value:
        if field.name == options.order_by and field.type.partition("<")[0].strip().lower() in _WITHOUT_ORDER:
            yield (
                f"order_by column {field.name!r} is of type {field.type}, whose values have no highest; take a number, "
                "a string, a date or a timestamp"
            )
    if options.order_by and options.kind not in (StateKind.VALUE, StateKind.MAP):
        yield f"a {options.kind} state has no order_by"
    if options.max_length and (options.map_key or options.reducers):
        yield "a list has neither a map key nor reducers"
    if options.reducers:
        if len(options.reducers) != len(options.value):
            yield "each value column needs a reducer, where one has it"
        yield from problems(dict(zip((field.name for field in options.value), options.reducers, strict=True)))
    if options.format.of_changes:
        yield from _change_problems(options)


def _change_problems(options: FeedOptions) -> Iterator[str]:
    """What a feed of changes can't be: each change takes back what the row was before."""
    if options.kind is StateKind.LIST:
        yield "a list can't follow the changes of a table, whose rows change and go; make it a map by the table's key"
    if options.order_by:
        yield "the changes of a table are in their order already; leave order_by out"
    if options.deletions.column:
        yield "the changes of a table say themselves which rows are deleted; leave --delete-when out"
    for reducer in options.reducers:
        if reducer not in _INVERTIBLE:
            yield (
                f"{reducer} can't follow the changes of a table, as a row that goes can't be taken out of it; "
                f"{' and '.join(_INVERTIBLE)} can"
            )
