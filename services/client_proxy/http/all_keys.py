"""All keys of a state over HTTP, page by page: `next` is the token behind which the following page goes on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.scan_token import OrderedPlace, ScanPlace, ordered_place_of, place_of
from keyhole.encoding.storage_key import prefix_of
from keyhole.errors import UnavailableError
from keyhole.model.selection import Selection
from keyhole.rpc.convert_predicates import selection_to_proto
from keyhole.rpc.ordered_pages import ENOUGH_BYTES, Fetched, FetchedEntry, ordered_pages
from keyhole.rpc.scan_requests import scan_number
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import state_pb2
from services.client_proxy.grpc.query_servicer import ProxyServicer
from services.client_proxy.http.requests import AllKeys
from services.client_proxy.http.scanned_pages import scanned_pages


class FoundKeys(NamedTuple):
    """A page.

    Attributes:
        rows: Storage key, row, and which of `sources` gave it.
        next: None: there are no more.
    """

    rows: list[tuple[bytes, bytes, int]]
    sources: list[state_pb2.Source]
    next: str | None


class KeysScan:
    """One request for a page of all keys.

    Args:
        asked: Which keys, how many, and in which order.
        select: Which entries of them, and what of each.
        most_bytes: The page is full beyond it.
    """

    def __init__(
        self,
        servicer: ProxyServicer,
        codec: StateCodec,
        options: pb.ReadOptions,
        asked: AllKeys,
        select: Selection,
        deadline: Any,
        most_bytes: int,
    ) -> None:
        self._servicer = servicer
        self._descriptor = codec.descriptor
        self._options = options
        self._asked = asked
        # Once for all key groups. One that is empty makes servers say whether they know of ranges.
        self._selection = selection_to_proto(select) or (pb.Selection() if asked.is_bounded else None)
        self._number = scan_number()
        self._deadline = deadline
        self._most_bytes = most_bytes
        # Behind what was found; None: there is no more.
        self._place: ScanPlace | OrderedPlace | None = None
        self._rows: list[tuple[bytes, bytes, int]] = []
        self._sources: dict[bytes, int] = {}
        self._size = 0

    async def found(self) -> FoundKeys:
        """Entries, until the page is full, or the time is over: in order, or key group by key group.

        Raises:
            MalformedRequest, StaleDescriptor: The token is none, or of another state or order.
            KeyholeError: As Scan, where it has come no further than it began. Else that far is an answer, also where
                there was nothing: the next request says why there is no more for now.
        """
        descriptor, after, down = self._descriptor, self._asked.after, self._asked.descending
        began: ScanPlace | OrderedPlace
        if self._asked.ordered:
            began = ordered_place_of(after, descriptor, descending=down) if after else OrderedPlace(down)
            finding = self._in_order(began)
        else:
            began = place_of(after, descriptor) if after else ScanPlace()
            finding = self._by_key_group(began)
        self._place = began
        try:
            await finding
        except UnavailableError:
            if self._place == began:
                raise
        sources = [state_pb2.Source.FromString(source) for source in self._sources]
        return FoundKeys(self._rows, sources, None if self._place is None else self._place.token(descriptor))

    async def _by_key_group(self, place: ScanPlace) -> None:
        while place.key_group < self._descriptor.key_groups:
            self._place = place
            async with aclosing(self._pages(place.key_group, place.after, self._left())) as pages:
                async for page in pages:
                    self._add(prefix_of(place.key_group), page)
                    self._place = place = place.at(self._rows[-1][0])
                    if self._full():
                        return
            place = ScanPlace(place.key_group + 1)
        self._place = None

    async def _in_order(self, place: OrderedPlace) -> None:
        asked = self._asked
        merged = ordered_pages(
            self._descriptor.key_groups,
            self._fetched,
            descending=asked.descending,
            after=place.after,
            limit=asked.limit,
        )
        async with aclosing(merged) as batches:
            async for batch in batches:
                for entry in batch:
                    row, source = entry.value
                    self._rows.append((entry.key, row, self._place_of(source)))
                    self._size += len(entry.key) + len(row)
                    self._place = place = place.at(entry.key)
                    if self._full():
                        return
        self._place = None

    async def _fetched(self, key_group: int, after: bytes, most: int) -> Fetched:
        prefix, size, found = prefix_of(key_group), 0, list[FetchedEntry]()
        async with aclosing(self._pages(key_group, after, most)) as pages:
            async for page in pages:
                source = _known_by(page.source)
                found += [
                    FetchedEntry(prefix + key, (row, source))
                    for key, row in zip(page.map_keys, page.values, strict=True)
                ]
                size += page.ByteSize()
                if size > ENOUGH_BYTES:
                    return Fetched(found, ended=False)
        return Fetched(found, len(found) < most)

    async def _pages(self, key_group: int, after: bytes, limit: int) -> AsyncGenerator[pb.ScanResponse]:
        """The pages of one call that have entries."""
        asked, descriptor = self._asked, self._descriptor
        request = pb.ScanRequest(
            state=pb.StateRef(application=descriptor.application, state=descriptor.state),
            key_group=asked.within.within(key_group, after, descending=asked.descending),
            limit=limit,
            options=self._options,
            topic_id=descriptor.topic_id,
            selection=self._selection,
            scan=self._number,
        )
        async with aclosing(scanned_pages(self._servicer, request, self._deadline)) as pages:
            async for page in pages:
                if page.map_keys:
                    yield page

    def _add(self, prefix: bytes, page: pb.ScanResponse) -> None:
        source = self._place_of(_known_by(page.source))
        self._rows += [(prefix + key, row, source) for key, row in zip(page.map_keys, page.values, strict=True)]
        self._size += page.ByteSize()

    def _place_of(self, source: bytes) -> int:
        return self._sources.setdefault(source, len(self._sources))

    def _left(self) -> int:
        return self._asked.limit - len(self._rows)

    def _full(self) -> bool:
        return self._size > self._most_bytes or not self._left()


def _known_by(source: state_pb2.Source) -> bytes:
    """The source, so that many of them can be told apart quickly."""
    return source.SerializeToString(deterministic=True)
