"""All keys of a state in the order of the keys, or from the last one down: pages of all key groups, merged here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from keyhole.client.wire.key_group_calls import KeyGroupCalls
from keyhole.client.wire.key_group_reads import EntriesRead
from keyhole.client.wire.link import Link
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.scan_token import OrderedPlace, ordered_place_of
from keyhole.rpc.ordered_pages import ENOUGH_BYTES, Fetched, FetchedEntry, ordered_pages


class OrderedReads:
    """One scan in order. Used from the event loop's thread only.

    Args:
        seconds: How long one call may take, of which a key group needs several.
        limit, after: As KeyGroupReads.
    """

    def __init__(
        self,
        calls: KeyGroupCalls,
        seconds: float,
        limit: int | None,
        after: str | None,
        *,
        descending: bool,
    ) -> None:
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
        deadline = self._loop.time() + self._seconds

        async def read(link: Link, codec: StateCodec) -> Fetched:
            asked = self._calls.key_group(codec, key_group, after)
            found: list[FetchedEntry] = []
            size = 0
            async with aclosing(self._calls.pages(link, codec, asked, deadline, limit=most)) as pages:
                async for page in pages:
                    if page.map_keys:
                        keys, entries = await self._calls.page_entries(page, key_group, deadline)
                        found += map(FetchedEntry, keys, entries)
                        size += page.ByteSize()
                    if size > ENOUGH_BYTES:
                        return Fetched(found, ended=False)
            return Fetched(found, len(found) < most)

        return await self._calls.read_whole(read, deadline)
