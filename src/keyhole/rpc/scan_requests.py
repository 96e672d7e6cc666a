"""What a scan asks for, from the wire's words to a range of storage keys."""

from __future__ import annotations

import random

from keyhole.encoding.codec import EntryRange, StateCodec
from keyhole.encoding.selected_entries import SelectedEntries
from keyhole.encoding.storage_key import GROUP_BYTES, group_of, prefix_of
from keyhole.errors import MalformedRequest, StaleDescriptor, Unsupported
from keyhole.model.state import StateDescriptor
from keyhole.rpc.convert import key_from_proto
from keyhole.rpc.convert_predicates import selection_from_proto
from keyhole.v1 import query_pb2

CALLS_AT_A_TIME = 8
"""So many key groups a scan in order, or aggregates, ask for at once."""

_MOST_KEY_GROUP = (1 << 8 * GROUP_BYTES) - 1


def scan_range(codec: StateCodec, request: query_pb2.ScanRequest) -> EntryRange:
    """The entries that are asked for.

    Raises:
        Unsupported: As `check_has_entries`; but for a key group, which states of all kinds have. Or map keys are asked
            for, of a state that has none under its keys.
        StaleDescriptor: The caller means a state that was made anew since.
        KeyMismatch, NullKey, MalformedRequest: A value does not fit its column.
        MalformedRequest: There is no such key group, or it is asked for together with a key or a bound.
    """
    descriptor = codec.descriptor
    if request.topic_id not in ("", descriptor.topic_id):
        raise StaleDescriptor(
            f"state {descriptor.path} was made anew; describe it again",
            topic_id=descriptor.topic_id,
        )
    if request.HasField("key_group"):
        if request.key.parts or getattr(request, "from").parts or request.to.parts or request.descending:
            raise MalformedRequest("a scan of a key group takes no key, from, to and descending; leave them out")
        if request.key_group.key_group > _MOST_KEY_GROUP:
            raise MalformedRequest(f"there is no key group {request.key_group.key_group}")
        of = request.key_group
        map_keys = (of.map_start, of.map_stop)
        return codec.group_range(of.key_group, of.after, of.start, of.stop, map_keys, descending=of.descending)
    check_has_entries(descriptor)
    start, stop = key_from_proto(getattr(request, "from")), key_from_proto(request.to)
    return codec.entry_range(key_from_proto(request.key), start, stop)


def is_descending(request: query_pb2.ScanRequest) -> bool:
    """Whether it is read from the last entry down."""
    return request.descending or request.key_group.descending


def selected_entries(descriptor: StateDescriptor, request: query_pb2.ScanRequest) -> SelectedEntries:
    """What is given of the entries in the range.

    Raises:
        ValueMismatch: The state has no such field, or of another type.
        MalformedRequest: It is no selection.
    """
    as_json = request.options.format == query_pb2.VALUE_FORMAT_JSON
    return SelectedEntries(descriptor, selection_from_proto(request.selection), as_json=as_json)


def scan_number() -> int:
    """By which the calls of one scan are known: another one each time."""
    return random.getrandbits(64) | 1


def check_goes_on(codec: StateCodec, request: query_pb2.ScanRequest, page: query_pb2.ScanResponse, who: str) -> None:
    """Passes where the first entries that came are of the key group that was asked for, and behind `after`.

    A server of before there were scans of a key group passes that field over. Of a broadcast state it then gives all
    entries, each time from the first one on, and who goes on behind the last one would never come to an end.

    Args:
        page: The first one with entries.
        who: Has sent it.

    Raises:
        Unsupported: They aren't.
    """
    if not request.HasField("key_group") or not page.map_keys or codec.descriptor.scan_key:
        return
    group, after = request.key_group.key_group, request.key_group.after
    if group != group_of(codec.prefix(())) or prefix_of(group) + page.map_keys[0] <= after:
        raise Unsupported(
            f"{who} is of an earlier version, which does not know scans of all keys: it began state "
            f"{codec.descriptor.path} anew. Update it, or scan the state without a key"
        )


def check_heeded(request: query_pb2.ScanRequest, page: query_pb2.ScanResponse) -> None:
    """Raises Unsupported: The page has what was not asked for, of a server that knows of no selection."""
    if request.HasField("selection") and not page.selected:
        raise Unsupported(
            f"server {page.source.server} is of an earlier version, which knows no where, fields, keys_only, "
            "order and range of keys; update it, or leave them out"
        )


def check_computed(last: query_pb2.ScanResponse) -> None:
    """Raises Unsupported: The answer, whose last page this is, has no aggregates: of a server that knows of none."""
    if not last.aggregates:
        raise Unsupported(
            f"server {last.source.server} is of an earlier version, which computes no aggregates; update it"
        )


def check_has_entries(descriptor: StateDescriptor) -> None:
    """Passes where a key of the state has entries. Raises Unsupported where it has one value, which Get gives."""
    if not descriptor.entry_key:
        raise Unsupported(
            f"state {descriptor.path} is of kind {descriptor.kind}: it has one value per "
            "key, and no entries to scan. Get its keys, or scan all of them",
            kind=descriptor.kind,
        )
