"""A scan as the client asks for it, and its answer put together from pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from keyhole.codec import KeyValue, StateCodec
from keyhole.errors import InternalError
from keyhole.rpc.convert import bounds_to_proto, key_to_proto, source_from_proto
from keyhole.types import Entries, Entry, KeyColumn, ReadBounds
from keyhole.v1 import query_pb2 as pb

MapKey: TypeAlias = KeyValue | Sequence[KeyValue]
"""One value, or a tuple of one per column of the map key; as a bound, of the first columns."""


@dataclass(frozen=True)
class Scan:
    """What AsyncClient.scan was asked for; `limit` 0: all."""

    application: str
    state: str
    key: Any
    start: MapKey | None
    stop: MapKey | None
    bounds: ReadBounds
    descending: bool
    limit: int

    def request(self, codec: StateCodec) -> pb.ScanRequest:
        """Raises KeyMismatch, NullKey: A value does not fit its column."""
        request = pb.ScanRequest(
            state=pb.StateRef(application=self.application, state=self.state),
            key=key_to_proto(codec.keys.columns, self.key),
            to=_bound(codec.entries.columns, self.stop),
            descending=self.descending,
            limit=self.limit,
            options=bounds_to_proto(self.bounds),
        )
        # A field of this name can't be an argument.
        getattr(request, "from").CopyFrom(_bound(codec.entries.columns, self.start))
        return request


def _bound(columns: Sequence[KeyColumn], bound: MapKey | None) -> pb.Key:
    if bound is None:
        return pb.Key()
    given = len(bound) if isinstance(bound, (tuple, list)) else 1
    return key_to_proto(columns[:given], bound)


def entries_of(codec: StateCodec, pages: Sequence[pb.ScanResponse]) -> Entries:
    """Raises ValueMismatch: A row is not of the codec's schema; the state must be described again."""
    if not pages:
        raise InternalError("a scan was answered without a page, by a bug of the server")
    single = len(codec.entries.columns) == 1
    entries = []
    for page in pages:
        for encoded, row in zip(page.map_keys, page.values, strict=True):
            map_key = codec.entries.decode(encoded)
            entries.append(Entry(map_key[0] if single else map_key, codec.decode_row(row)))
    return Entries(tuple(entries), source_from_proto(pages[0].source))
