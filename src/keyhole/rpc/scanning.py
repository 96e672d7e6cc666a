"""What a scan asks for, from the wire's words to a range of storage keys."""

from __future__ import annotations

from keyhole.codec import StateCodec
from keyhole.errors import Unsupported
from keyhole.rpc.convert import key_from_proto
from keyhole.v1 import query_pb2


def scan_range(codec: StateCodec, request: query_pb2.ScanRequest) -> tuple[bytes, bytes | None]:
    """From (inclusive) and to (exclusive; None: the end of the key group).

    Raises:
        Unsupported: The state has one value per key, which Get gives.
        KeyMismatch, NullKey, MalformedRequest: A value does not fit its column.
    """
    descriptor = codec.descriptor
    if not descriptor.entry_key:
        raise Unsupported(
            f"state {descriptor.application}/{descriptor.state} is of kind {descriptor.kind}: it has one value per "
            "key, and no entries to scan. Get its keys",
            kind=descriptor.kind,
        )
    key = key_from_proto(request.key)
    start, stop = key_from_proto(getattr(request, "from")), key_from_proto(request.to)
    return codec.entry_range(key, start, stop)
