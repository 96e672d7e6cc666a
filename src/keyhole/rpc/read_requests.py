"""What a request to read may ask for, the same on every hop: proxy, state server, and the server for tests."""

from __future__ import annotations

from keyhole.errors import MalformedRequest, Unsupported
from keyhole.v1 import query_pb2

MAX_KEYS_PER_REQUEST = 16_384
"""Enough for a frame of any client of ours, and small enough not to hold an event loop for more than milliseconds."""

_COMMITTED = (query_pb2.CONSISTENCY_UNSPECIFIED, query_pb2.CONSISTENCY_COMMITTED)


def check_consistency(options: query_pb2.ReadOptions) -> None:
    """Raises Unsupported for a consistency that this version does not have."""
    if options.consistency not in _COMMITTED:
        raise Unsupported("only COMMITTED reads are supported by this version")


def check_lookup(options: query_pb2.ReadOptions, keys: int) -> None:
    """Whether so many keys may be looked up so.

    Raises:
        Unsupported: As `check_consistency`.
        MalformedRequest: Too many.
    """
    check_consistency(options)
    if keys > MAX_KEYS_PER_REQUEST:
        raise MalformedRequest(
            f"{keys:,} keys in one request; at most {MAX_KEYS_PER_REQUEST:,} may be: send several", keys=keys
        )


def check_frame(request: query_pb2.LookupRequest) -> None:
    """Raises MalformedRequest for a frame that names its keys in two ways."""
    if request.keys and request.storage_keys:
        raise MalformedRequest("a frame has either keys or storage_keys, not both")


def key_count(request: query_pb2.LookupRequest) -> int:
    """How many keys a frame asks for, in either way."""
    return len(request.storage_keys) or len(request.keys)
