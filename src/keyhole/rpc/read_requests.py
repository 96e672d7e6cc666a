"""What a request to read asks for, checked once at its head: the same on every hop, proxy and state server alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from keyhole.encoding.key_values import KeyValue
from keyhole.errors import MalformedRequest, Unsupported
from keyhole.model.read import ReadBounds
from keyhole.protocol.server_view import StateName
from keyhole.rpc.convert import bounds_from_proto, key_from_proto
from keyhole.v1 import query_pb2

MAX_KEYS_PER_REQUEST = 16_384
"""Enough for a frame of any client of ours, and small enough not to hold an event loop for more than milliseconds."""

_ANY = ReadBounds()
_OF_SERVERS = (
    query_pb2.CONSISTENCY_UNSPECIFIED,
    query_pb2.CONSISTENCY_COMMITTED,
    query_pb2.CONSISTENCY_LATEST,
)


class KeyLookup(NamedTuple):
    """Keys of one state that are looked up together. They are given in one of two ways, or there are none.

    Attributes:
        state: Application and state.
        as_json: Values are to be JSON, of callers without a codec; else they are rows.
        keys: The values of each key's columns, of callers without a codec.
        storage_keys: Keys that the caller has encoded, by the descriptor with this `topic_id`.
    """

    state: StateName
    bounds: ReadBounds
    as_json: bool
    keys: Sequence[tuple[KeyValue, ...]] = ()
    storage_keys: Sequence[bytes] = ()
    topic_id: str = ""


def lookup_of_frame(request: query_pb2.LookupRequest) -> KeyLookup:
    """What a frame of a Lookup stream asks for.

    Raises:
        MalformedRequest: It names its keys in two ways, or too many of them; or a key has a time that can't be.
        NullKey: A part of a key has no value.
        Unsupported: A consistency, or a policy for stale reads, that this version does not have.
    """
    if request.keys and request.storage_keys:
        raise MalformedRequest("a frame has either keys or storage_keys, not both")
    # As a list: each look into a message's field makes its bytes anew.
    return _lookup(request, request.keys, list(request.storage_keys), request.topic_id)


def lookup_of_keys(request: query_pb2.GetManyRequest) -> KeyLookup:
    """What Get or GetMany asks for. Raises as `lookup_of_frame`."""
    return _lookup(request, request.keys)


def key_count(request: query_pb2.LookupRequest) -> int:
    """How many keys a frame asks for, in either way; also of one that can't be read."""
    return len(request.storage_keys) or len(request.keys)


def refused_count(request: query_pb2.LookupRequest) -> int:
    """How many values the refusal of a frame has, and how many keys count as refused. No more than may be in one: that
    of a frame of empty keys would be as large as the frame.
    """
    return min(key_count(request), MAX_KEYS_PER_REQUEST)


def check_key_count(count: int) -> None:
    """Raises MalformedRequest: So many keys are more than may be in one request."""
    if count > MAX_KEYS_PER_REQUEST:
        raise MalformedRequest(
            f"{count:,} keys in one request; at most {MAX_KEYS_PER_REQUEST:,} may be: send several", keys=count
        )


def check_consistency(options: query_pb2.ReadOptions) -> None:
    """What scans take. Raises Unsupported for a consistency that they don't have."""
    if options.consistency not in _OF_SERVERS:
        raise Unsupported(
            "a scan has the consistency COMMITTED or LATEST; SNAPSHOT is of look-ups at a client proxy, and a scan is "
            "of one epoch by as_of"
        )


def _lookup(
    request: query_pb2.LookupRequest | query_pb2.GetManyRequest,
    keys: Sequence[query_pb2.Key],
    storage_keys: Sequence[bytes] = (),
    topic_id: str = "",
) -> KeyLookup:
    state, bounds, as_json = request.state, _ANY, False
    if request.HasField("options"):  # else all of them are the defaults, as they mostly are
        options = request.options
        if options.consistency not in _OF_SERVERS:
            raise Unsupported(
                "the consistency is neither COMMITTED nor LATEST; Get and GetMany of a client proxy also take SNAPSHOT"
            )
        bounds, as_json = bounds_from_proto(options), options.format == query_pb2.VALUE_FORMAT_JSON
    check_key_count(len(storage_keys) or len(keys))
    return KeyLookup(
        (state.application, state.state),
        bounds,
        as_json,
        [key_from_proto(key) for key in keys],
        storage_keys,
        topic_id,
    )
