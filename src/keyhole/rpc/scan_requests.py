"""What a scan asks for, from the wire's words to a range of storage keys."""

from __future__ import annotations

from keyhole.encoding.codec import EntryRange, StateCodec
from keyhole.errors import StaleDescriptor, Unsupported
from keyhole.model.state import StateDescriptor
from keyhole.rpc.convert import key_from_proto
from keyhole.v1 import query_pb2


def scan_range(codec: StateCodec, request: query_pb2.ScanRequest) -> EntryRange:
    """The entries that are asked for.

    Raises:
        Unsupported: As `check_has_entries`.
        StaleDescriptor: The caller means a state that was made anew since.
        KeyMismatch, NullKey, MalformedRequest: A value does not fit its column.
    """
    descriptor = codec.descriptor
    if request.topic_id not in ("", descriptor.topic_id):
        raise StaleDescriptor(
            f"state {descriptor.application}/{descriptor.state} was made anew; describe it again",
            topic_id=descriptor.topic_id,
        )
    check_has_entries(descriptor)
    start, stop = key_from_proto(getattr(request, "from")), key_from_proto(request.to)
    return codec.entry_range(key_from_proto(request.key), start, stop)


def check_has_entries(descriptor: StateDescriptor) -> None:
    """Passes where a key of the state has entries. Raises Unsupported where it has one value, which Get gives."""
    if not descriptor.entry_key:
        raise Unsupported(
            f"state {descriptor.application}/{descriptor.state} is of kind {descriptor.kind}: it has one value per "
            "key, and no entries to scan. Get its keys",
            kind=descriptor.kind,
        )
