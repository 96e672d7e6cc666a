"""All keys of a state in the order of the keys, or from the last one down: pages of all key groups, merged here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from keyhole.client.wire.cut_off import is_cut_off
from keyhole.client.wire.key_group_calls import KeyGroupCalls, keyed_entries
from keyhole.client.wire.key_group_reads import EntriesRead
from keyhole.client.wire.links import CallAttempts, Links
from keyhole.encoding.scan_token import OrderedPlace, ordered_place_of
from keyhole.encoding.storage_key import prefix_of
from keyhole.errors import StaleDescriptor, UnavailableError, ValueMismatch
from keyhole.model.read import KeyedEntry
from keyhole.rpc.convert import source_from_proto
from keyhole.rpc.ordered_pages import Fetched, FetchedEntry, ordered_pages
from keyhole.v1 import query_pb2 as pb

# Rows may be large: so much is fetched ahead of a key group, and no more than a page beside.
_ENOUGH_BYTES = 256 << 10


class OrderedReads:
    """One scan in order. Used from the event loop's thread only.

    Args:
        seconds: How long one call may take, of which a key group needs several.
        limit, after: As KeyGroupReads.
    """

    def __init__(
        self,
        links: Links,
        calls: KeyGroupCalls,
        seconds: float,
        limit: int | None,
        after: str | None,
        *,
        descending: bool,
    ) -> None:
        self._links = links
        self._calls = calls
        self._seconds = seconds
        self._limit = limit
        self._after = after
        self._descending = descending
        self._loop = asyncio.get_running_loop()

    async def pages(self) -> AsyncGenerator[EntriesRead]:
        """All pages, in order. Close the iterator. Raises KeyholeError: See AsyncClient.scan_all."""
        codec = await self._calls.begun_with(self._loop.time() + self._seconds, self._calls.encoded)
        descriptor, down, left = codec.descriptor, self._descending, self._limit
        place = OrderedPlace(down)
        if self._after:
            place = ordered_place_of(self._after, descriptor, descending=down)
        merged = ordered_pages(
            descriptor.key_groups, self._fetched, descending=down, after=place.after, limit=self._limit
        )
        async with aclosing(merged) as batches:
            async for batch in batches:
                found = batch if left is None else batch[:left]
                keys, entries = [entry.key for entry in found], [entry.value for entry in found]
                before, place = place, place.at(keys[-1])
                yield EntriesRead(entries, keys, before, place, descriptor)
                if left is not None:
                    left -= len(found)
                    if not left:
                        return
        yield EntriesRead((), (), place, None, descriptor)

    async def _fetched(self, key_group: int, after: bytes, most: int) -> Fetched:
        """It is asked for again, also in the middle: nobody has seen any of it."""
        deadline = self._loop.time() + self._seconds
        attempts = CallAttempts(self._links, deadline)
        while True:
            codec = await self._calls.codec(deadline)
            link = await attempts.link()
            asked = self._calls.key_group(codec, key_group, after)
            found: list[KeyedEntry] = []
            keys: list[bytes] = []
            size, ended = 0, False
            try:
                async with aclosing(self._calls.pages(link, codec, asked, deadline, limit=most)) as pages:
                    async for page in pages:
                        if page.map_keys:
                            more, entries = await self._decoded(page, key_group, deadline)
                            keys += more
                            found += entries
                            size += page.ByteSize()
                        if size > _ENOUGH_BYTES:
                            break
                    else:
                        ended = len(keys) < most
            except StaleDescriptor as error:
                await self._calls.describe_again(codec, error, deadline)
            except UnavailableError as error:
                if not is_cut_off(error):
                    raise attempts.told(error) from error.__cause__
                await attempts.again(error, link)
            else:
                return Fetched(list(map(FetchedEntry, keys, found)), ended)

    async def _decoded(
        self, page: pb.ScanResponse, key_group: int, deadline: float
    ) -> tuple[list[bytes], list[KeyedEntry]]:
        prefix, source = prefix_of(key_group), source_from_proto(page.source)
        keys = [prefix + key for key in page.map_keys]
        while True:
            codec = await self._calls.codec(deadline)
            try:
                return keys, keyed_entries(codec, keys, self._calls.rows(codec).values(page), source)
            except (StaleDescriptor, ValueMismatch) as error:
                # A row of a schema that was added since the state was described.
                await self._calls.describe_again(codec, error, deadline)
