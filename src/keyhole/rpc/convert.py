"""keyhole.types <-> keyhole.v1, and key values <-> key parts. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from keyhole.encoding.key_codec import KeyCodec
from keyhole.encoding.key_values import KeyValue
from keyhole.encoding.murmur3 import days, micros
from keyhole.errors import MalformedRequest, NullKey, Unsupported
from keyhole.model.read import ReadBounds, Role, Source, Stale
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, TtlClock, ValueField, ValueSchema
from keyhole.v1 import query_pb2, state_pb2

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()

_KINDS = {kind: state_pb2.StateKind.Value(f"STATE_KIND_{kind.name}") for kind in StateKind}
_KINDS_BACK = {number: kind for kind, number in _KINDS.items()}
_KEY_TYPES = {kind: state_pb2.KeyType.Value(f"KEY_TYPE_{kind.name}") for kind in KeyType}
_KEY_TYPES_BACK = {number: kind for kind, number in _KEY_TYPES.items()}
_CLOCKS = {clock: state_pb2.Clock.Value(f"CLOCK_{clock.name}") for clock in TtlClock}
_CLOCKS_BACK = {number: clock for clock, number in _CLOCKS.items()} | {
    state_pb2.CLOCK_UNSPECIFIED: TtlClock.PROCESSING_TIME
}
_ROLES = {state_pb2.ROLE_OWNER: Role.OWNER, state_pb2.ROLE_STANDBY: Role.STANDBY}
_STALE = {
    Stale.NEVER: query_pb2.STALE_NEVER,
    Stale.WHEN_NEEDED: query_pb2.STALE_WHEN_NEEDED,
    Stale.ALWAYS: query_pb2.STALE_ALWAYS,
}
_STALE_BACK = {number: stale for stale, number in _STALE.items()} | {query_pb2.STALE_UNSPECIFIED: Stale.WHEN_NEEDED}


def descriptor_to_proto(descriptor: StateDescriptor) -> state_pb2.StateDescriptor:
    """The descriptor as a message; `descriptor_from_proto` gives an equal one back."""
    return state_pb2.StateDescriptor(
        application=descriptor.application,
        state=descriptor.state,
        query=descriptor.query,
        kind=_KINDS[descriptor.kind],
        key_groups=descriptor.key_groups,
        key=_columns_to_proto(descriptor.key),
        map_key=_columns_to_proto(descriptor.map_key),
        value=_schema_to_proto(descriptor.value),
        order_by=descriptor.order_by,
        topic_id=descriptor.topic_id,
        reducers=descriptor.reducers,
        earlier=map(_schema_to_proto, descriptor.earlier),
        ttl_ms=descriptor.ttl_ms,
        ttl_clock=_CLOCKS[descriptor.ttl_clock],
        max_length=descriptor.max_length,
        keep_deleted_ms=descriptor.keep_deleted_ms,
        class_version=descriptor.class_version,
        updates_topic_id=descriptor.updates_topic_id,
        keep_epochs=descriptor.keep_epochs,
        index=descriptor.index,
    )


def _columns_to_proto(columns: Sequence[KeyColumn]) -> list[state_pb2.KeyColumn]:
    return [state_pb2.KeyColumn(name=column.name, type=_KEY_TYPES[column.type]) for column in columns]


def _columns_from_proto(columns: Iterable[state_pb2.KeyColumn]) -> tuple[KeyColumn, ...]:
    return tuple(KeyColumn(column.name, _KEY_TYPES_BACK[column.type]) for column in columns)


def _schema_to_proto(schema: ValueSchema) -> state_pb2.ValueSchema:
    return state_pb2.ValueSchema(
        version=schema.version,
        fields=[
            state_pb2.ValueField(name=item.name, type=item.type, nullable=item.nullable, default=item.default)
            for item in schema.fields
        ],
    )


def _schema_from_proto(message: state_pb2.ValueSchema) -> ValueSchema:
    return ValueSchema(
        message.version,
        tuple(ValueField(item.name, item.type, item.nullable, item.default) for item in message.fields),
    )


def descriptor_from_proto(message: state_pb2.StateDescriptor) -> StateDescriptor:
    """The inverse.

    Raises:
        MalformedRequest: A kind or key type that this version does not know, or a number of key groups that can't be.
    """
    name = f"{message.application}/{message.state}"
    columns = (*message.key, *message.map_key)
    unknown = [column.name for column in columns if column.type not in _KEY_TYPES_BACK]
    if message.kind not in _KINDS_BACK or unknown or message.ttl_clock not in _CLOCKS_BACK:
        what = f"the type of key column {unknown[0]}" if unknown else "its kind, or the time it expires by,"
        raise MalformedRequest(f"the descriptor of {name} can't be read: {what} is unknown; update this side")
    if not 1 <= message.key_groups <= 1 << 16 or not message.key:
        raise MalformedRequest(
            f"the descriptor of {name} can't be: {message.key_groups} key groups, {len(message.key)} key columns"
        )
    return StateDescriptor(
        application=message.application,
        state=message.state,
        query=message.query,
        kind=_KINDS_BACK[message.kind],
        key_groups=message.key_groups,
        key=_columns_from_proto(message.key),
        map_key=_columns_from_proto(message.map_key),
        value=_schema_from_proto(message.value),
        order_by=message.order_by,
        topic_id=message.topic_id,
        reducers=tuple(message.reducers),
        earlier=tuple(map(_schema_from_proto, message.earlier)),
        ttl_ms=message.ttl_ms,
        ttl_clock=_CLOCKS_BACK[message.ttl_clock],
        max_length=message.max_length,
        keep_deleted_ms=message.keep_deleted_ms,
        class_version=message.class_version,
        updates_topic_id=message.updates_topic_id,
        keep_epochs=message.keep_epochs,
        index=tuple(message.index),
    )


def source_from_proto(message: state_pb2.Source) -> Source:
    """0 milliseconds mean None. An unknown role (a newer server) counts as standby: it promises least."""
    # A server's answers have the same one until it commits or is confirmed again. To make one takes 4 us, as long as
    # all else of a lone answer; to find it by its bytes takes 0.5.
    return _source(message.SerializeToString())


@functools.lru_cache(maxsize=1024)
def _source(encoded: bytes) -> Source:
    message = state_pb2.Source.FromString(encoded)
    return Source(
        server=message.server,
        role=_ROLES.get(message.role, Role.STANDBY),
        epoch=message.epoch,
        commit_time=time_from_ms(message.commit_time_ms),
        watermark=time_from_ms(message.watermark_ms),
        generation=message.generation,
        assignment_version=message.assignment_version,
        unconfirmed=message.unconfirmed,
        as_of=time_from_ms(message.as_of_ms),
        lag_epochs=message.lag_epochs,
        staged_epoch=message.staged_epoch,
    )


def bounds_to_proto(bounds: ReadBounds) -> query_pb2.ReadOptions | None:
    """The options of a request; None where all are the defaults."""
    if bounds == ReadBounds():
        return None
    return query_pb2.ReadOptions(
        consistency=query_pb2.CONSISTENCY_LATEST if bounds.latest else query_pb2.CONSISTENCY_UNSPECIFIED,
        min_epoch=bounds.min_epoch,
        stale=_STALE[bounds.stale],
        max_staleness_ms=bounds.max_staleness_ms,
        min_epochs=dict(bounds.min_epochs),
        as_of_epoch=bounds.as_of,
    )


def bounds_from_proto(message: query_pb2.ReadOptions) -> ReadBounds:
    """The bounds of a request's options.

    Raises:
        Unsupported: A policy that this version does not know.
        MalformedRequest: A bound beside `as_of_epoch`, which says all. LATEST, as of an epoch or of any copy.
    """
    if message.stale not in _STALE_BACK:
        raise Unsupported(f"the policy for stale reads {message.stale} is not known here; update this side")
    by_group = tuple(sorted(message.min_epochs.items())) if message.min_epochs else ()
    as_of = message.as_of_epoch
    if as_of and (message.min_epoch or by_group or message.max_staleness_ms):
        raise MalformedRequest("as_of says of which epoch the answer is: leave min_epoch and max_staleness out")
    stale, latest = _STALE_BACK[message.stale], message.consistency == query_pb2.CONSISTENCY_LATEST
    bounds = ReadBounds(message.min_epoch, stale, message.max_staleness_ms, by_group, as_of, latest)
    if latest:
        bounds.check_latest()
    return bounds


def key_to_proto(columns: Sequence[KeyColumn], key: KeyValue | Sequence[KeyValue]) -> query_pb2.Key:
    """A key as the user gives it (one value, or a tuple of one per column) as a message.

    Raises:
        KeyMismatch, NullKey: As KeyCodec.check.
    """
    columns = tuple(columns)
    values = KeyCodec(columns).check(key)
    return query_pb2.Key(parts=[_part(column.type, value) for column, value in zip(columns, values, strict=True)])


def key_from_proto(message: query_pb2.Key) -> tuple[KeyValue, ...]:
    """The values of a key, one per part. Whether they fit the state's columns is StateCodec's to say.

    Raises:
        NullKey: A part without a value.
        MalformedRequest: A date or a time outside the years 1 to 9999.
    """
    return tuple(_value(part) for part in message.parts)


def _part(kind: KeyType, value: Any) -> query_pb2.KeyPart:
    match kind:
        case KeyType.STRING:
            return query_pb2.KeyPart(string=value)
        case KeyType.BINARY:
            return query_pb2.KeyPart(binary=value)
        case KeyType.BOOLEAN:
            return query_pb2.KeyPart(boolean=value)
        case KeyType.TIMESTAMP:
            return query_pb2.KeyPart(timestamp_micros=micros(value))
        case KeyType.DATE:
            return query_pb2.KeyPart(date_days=days(value))
        case _:
            return query_pb2.KeyPart(integer=value)


def _value(part: query_pb2.KeyPart) -> KeyValue:
    which = part.WhichOneof("value")
    try:
        match which:
            case "string":
                return part.string
            case "binary":
                return part.binary
            case "boolean":
                return part.boolean
            case "integer":
                return part.integer
            case "date_days":
                return date.fromordinal(part.date_days + _EPOCH_DAY)
            case "timestamp_micros":
                return _EPOCH + timedelta(microseconds=part.timestamp_micros)
            case None:
                raise NullKey("a key part has no value; a state has no null keys")
    except (ValueError, OverflowError) as error:
        raise MalformedRequest(f"a key part ({which}) lies outside the years 1 to 9999") from error


def time_from_ms(milliseconds: int) -> datetime | None:
    """UTC; of 0 None, which is how messages say that it is not known.

    One that Python has no date for is the first or the last moment that it has. One event with a wrong time sets a
    query's watermark to any year, and no answer may fail for it.
    """
    if not milliseconds:
        return None
    try:
        # Not datetime.fromtimestamp: that goes through a float and rounds.
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return _LAST if milliseconds > 0 else _FIRST
