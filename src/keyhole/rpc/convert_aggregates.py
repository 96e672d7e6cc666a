"""Aggregates, and what is computed of them, as the messages of keyhole.v1, and back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from keyhole.encoding.aggregation import BoundAggregate, Partial, TopEntry
from keyhole.encoding.predicate_binding import FLOATS, WHOLE
from keyhole.encoding.storage_key import GROUP_BYTES
from keyhole.errors import MalformedRequest
from keyhole.model.aggregates import MOST_AGGREGATES, MOST_TOP, AggregateKind, AskedAggregate
from keyhole.rpc.convert_predicates import field_from_proto, field_to_proto
from keyhole.v1 import predicate_pb2 as pb

_NUMBERS = {of.value for of in AggregateKind}
_STORED_AS = {
    "string": "string",
    "binary": "binary",
    "boolean": "boolean",
    "date": "date_days",
    "timestamp": "timestamp_micros",
    "timestamp_ntz": "timestamp_ntz_micros",
    "decimal": "decimal",
    **dict.fromkeys(FLOATS, "floating"),
    **dict.fromkeys(WHOLE, "integer"),
}


def aggregate_to_proto(of: AskedAggregate) -> pb.Aggregate:
    """The aggregate as a message; `aggregates_from_proto` gives an equal one back."""
    path = None if of.path is None else field_to_proto(of.path)
    return pb.Aggregate(
        kind=of.kind.value,  # type: ignore[arg-type]  # its number
        field=path,
        entries=of.entries,
        smallest=of.smallest,
    )


def aggregates_from_proto(messages: Sequence[pb.Aggregate]) -> list[AskedAggregate]:
    """The aggregates of a request.

    Raises:
        MalformedRequest: One is of a kind that is not known here, of no field, or there are too many.
    """
    if len(messages) > MOST_AGGREGATES:
        raise MalformedRequest(f"a request may have {MOST_AGGREGATES} aggregates; ask for fewer at once")
    found = []
    for message in messages:
        kind = AggregateKind(message.kind) if message.kind in _NUMBERS else None
        path = field_from_proto(message.field) if message.HasField("field") else None
        tops = 1 <= message.entries <= MOST_TOP if kind is AggregateKind.TOP else not message.entries
        if kind is None or (path is None and kind is not AggregateKind.COUNT) or not tops:
            raise MalformedRequest(
                "an aggregate is of a kind that is not known here, of no field, or of no such number"
            )
        found.append(AskedAggregate(kind, path, message.entries, message.smallest))
    return found


def partial_to_proto(of: BoundAggregate, partial: Partial, rows: Sequence[bytes]) -> pb.PartialAggregate:
    """What was computed, as a message.

    Args:
        rows: What is given of the rows of a TOP, in its order.
    """
    top = [
        pb.TopEntry(value=_to_proto(of, entry.value), key=entry.key[GROUP_BYTES:], row=row)
        for entry, row in zip(partial.top, rows, strict=True)
    ]
    value = None if partial.value is None else _to_proto(of, partial.value)
    return pb.PartialAggregate(count=partial.count, value=value, top=top)


def partial_from_proto(of: BoundAggregate, message: pb.PartialAggregate, prefix: bytes) -> Partial:
    """What a server has computed.

    Args:
        prefix: Of the storage keys of the key group that it is of.
    """
    top = [TopEntry(_from_proto(of, entry.value), prefix + entry.key, entry.row) for entry in message.top]
    value = _from_proto(of, message.value) if message.HasField("value") else None
    return Partial(message.count, value, top)


def _to_proto(of: BoundAggregate, value: Any) -> pb.PredicateValue:
    if _is_long(of):
        return pb.PredicateValue(decimal=str(value))
    given = format(value, "f") if isinstance(value, Decimal) else value
    fields: dict[str, Any] = {_STORED_AS[of.type.kind]: given}
    return pb.PredicateValue(**fields)


def _from_proto(of: BoundAggregate, message: pb.PredicateValue) -> Any:
    if _is_long(of):
        return int(message.decimal)
    value = getattr(message, _STORED_AS[of.type.kind])
    return Decimal(value) if of.type.kind == "decimal" else value


def _is_long(of: BoundAggregate) -> bool:
    """Sums of whole numbers may be larger than one."""
    return of.of.kind in (AggregateKind.SUM, AggregateKind.AVERAGE) and of.type.kind in WHOLE
