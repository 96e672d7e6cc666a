"""What the reads of all keys of a state have in common: one call for each key group, of one and the same state."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc

from keyhole.client.wire.cut_off import is_cut_off
from keyhole.client.wire.key_bounds import ALL_KEYS, KeyBounds
from keyhole.client.wire.link import Link
from keyhole.client.wire.links import CallAttempts, Links
from keyhole.client.wire.newer_schema import await_newer
from keyhole.client.wire.selected_rows import SelectedRows
from keyhole.client.wire.state_reads import StateReads
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.key_reading import entry_reader
from keyhole.encoding.storage_key import prefix_of
from keyhole.errors import KeyholeError, StaleDescriptor, UnavailableError, ValueMismatch
from keyhole.model.read import KeyedEntry, ReadBounds, Source
from keyhole.model.selection import Selection
from keyhole.rpc.convert import bounds_to_proto, source_from_proto
from keyhole.rpc.convert_predicates import selection_to_proto
from keyhole.rpc.scan_requests import check_goes_on, check_heeded, scan_number
from keyhole.v1 import query_pb2 as pb

T = TypeVar("T")


class KeyGroupCalls:
    """Used from the event loop's thread only.

    Args:
        name: Application and state.
        reads: Of the state.
        select: Which entries, and what of each.
        within: Of which keys.
        descending: From the last one of each key group down.
        number: By which its calls are known as of one scan; 0: by a number of its own.
    """

    def __init__(
        self,
        links: Links,
        name: tuple[str, str],
        reads: Callable[[], StateReads],
        bounds: ReadBounds,
        select: Selection,
        within: KeyBounds = ALL_KEYS,
        *,
        descending: bool = False,
        number: int = 0,
    ) -> None:
        self._links = links
        self._name = name
        self._reads = reads
        self._bounds = bounds
        self._select = select
        self._within = within
        self._descending = descending
        self._selected: tuple[StateCodec, SelectedRows] | None = None
        self._topic_id = ""
        self._number = number or scan_number()
        self._loop = asyncio.get_running_loop()

    async def begun_with(self, deadline: float, check: Callable[[StateCodec], object]) -> StateCodec:
        """What all calls are of: the state as it is now, which `check` passes.

        Raises:
            ValueMismatch: As `check`, of what the state is now.
            KeyholeError: The state can't be described in time.
        """
        while True:
            codec = await self._reads().codec(deadline)
            try:
                self.rows(codec)
                check(codec)
            except ValueMismatch as error:
                # The state may have got the field since it was described.
                self._reads().outdated(codec)
                await await_newer(self._links, lambda: self._reads().codec(deadline), codec, error, deadline)
            else:
                self._topic_id = codec.descriptor.topic_id
                return codec

    def encoded(self, codec: StateCodec) -> tuple[bytes, bytes, bytes, bytes]:
        """The bounds of the keys, and of the map keys under each.

        Raises:
            KeyMismatch, NullKey, MalformedRequest, Unsupported: They don't fit the state's.
        """
        return *self._within.encoded(codec), *self._within.encoded_map_keys(codec)

    def key_group(self, codec: StateCodec, key_group: int, after: bytes = b"") -> pb.KeyGroupScan:
        """What is asked for of a key group, behind a storage key."""
        start, stop, map_start, map_stop = self.encoded(codec)
        return pb.KeyGroupScan(
            key_group=key_group,
            after=after,
            start=start,
            stop=stop,
            descending=self._descending,
            map_start=map_start,
            map_stop=map_stop,
        )

    def rows(self, codec: StateCodec) -> SelectedRows:
        """What reads the values of pages. Raises ValueMismatch: The state has no field that is selected by."""
        if self._selected is None or self._selected[0] is not codec:
            self._selected = codec, SelectedRows(codec, self._select)
        return self._selected[1]

    async def pages(
        self, link: Link, codec: StateCodec, key_group: pb.KeyGroupScan, deadline: float, as_of: int = 0, **asked: Any
    ) -> AsyncGenerator[pb.ScanResponse]:
        """The answer to one call. Close the iterator. Raises KeyholeError.

        Args:
            as_of: The epoch of which it is the rest; 0: it begins, as of what is asked for.
        """
        bounds = self._bounds.among([key_group.key_group])
        if as_of:
            # It has met the other bounds as it began.
            bounds = ReadBounds(stale=bounds.stale, as_of=as_of)
        request = pb.ScanRequest(
            state=pb.StateRef(application=self._name[0], state=self._name[1]),
            key_group=key_group,
            options=bounds_to_proto(bounds),
            topic_id=codec.descriptor.topic_id,
            selection=self._selection(key_group),
            scan=self._number,
            **asked,
        )
        call = link.stub.Scan(request, timeout=max(0.001, deadline - self._loop.time()))
        begun = False
        try:
            async for page in call:
                link.heard()
                if not begun:
                    check_goes_on(codec, request, page, link.target)
                begun = begun or bool(page.map_keys)
                check_heeded(request, page)
                yield page
        except grpc.RpcError as error:
            raise link.failed(error) from error
        finally:
            call.cancel()

    @property
    def of_one_epoch(self) -> bool:
        """Whether its caller has said of which epoch all is to be."""
        return self._bounds.as_of > 0

    def may_go_on(self, codec: StateCodec, epoch: int) -> bool:
        """Whether the rest of a key group can be read by another call, as of the epoch that its beginning was of."""
        return epoch > 0 and not self._bounds.latest and not codec.descriptor.updates_topic_id

    async def read_whole(self, read: Callable[[Link, StateCodec], Awaitable[T]], deadline: float) -> T:
        """What is read by one call. It is made again where it was cut off, also in the middle: nobody has seen any of
        it. Raises KeyholeError.
        """
        attempts = CallAttempts(self._links, deadline)
        while True:
            codec = await self.codec(deadline)
            link = await attempts.link()
            try:
                return await read(link, codec)
            except StaleDescriptor as error:
                await self.describe_again(codec, error, deadline)
            except UnavailableError as error:
                if not is_cut_off(error):
                    raise attempts.error_for_caller(error) from error.__cause__
                await attempts.again(error, link)

    async def page_entries(
        self, page: pb.ScanResponse, key_group: int, deadline: float
    ) -> tuple[list[bytes], list[KeyedEntry]]:
        """The storage keys of a page, and their entries. Raises as `entries`."""
        prefix, source = prefix_of(key_group), source_from_proto(page.source)
        keys = [prefix + key for key in page.map_keys]
        return keys, await self.entries(keys, page.values, [source] * len(keys), deadline)

    async def entries(
        self, keys: Sequence[bytes], rows: Sequence[bytes], sources: Sequence[Source], deadline: float
    ) -> list[KeyedEntry]:
        """Entries, by the state as it is now.

        Raises:
            StaleDescriptor, ValueMismatch: A row is of a schema that nobody tells of in time, or of none.
        """
        while True:
            codec = await self.codec(deadline)
            try:
                values, read = self.rows(codec).values(rows), entry_reader(codec)
                return [
                    KeyedEntry(*read(key), value, source)
                    for key, value, source in zip(keys, values, sources, strict=True)
                ]
            except (StaleDescriptor, ValueMismatch) as error:
                # A row of a schema that was added since the state was described.
                await self.describe_again(codec, error, deadline)

    def _selection(self, asked: pb.KeyGroupScan) -> pb.Selection | None:
        bounded = asked.start or asked.stop or asked.descending or asked.map_start or asked.map_stop
        # One that is empty makes servers say whether they know of ranges.
        return self._selected_by or (pb.Selection() if bounded else None)

    @functools.cached_property
    def _selected_by(self) -> pb.Selection | None:
        # Once for all key groups: a list of thousands of values takes a while.
        return selection_to_proto(self._select)

    async def codec(self, deadline: float) -> StateCodec:
        """As the state is now. Raises StaleDescriptor: It was made anew since `begun_with`."""
        codec = await self._reads().codec(deadline)
        if codec.descriptor.topic_id != self._topic_id:
            raise StaleDescriptor(
                f"state {'/'.join(self._name)} was made anew while all its keys were read; begin the scan again",
                topic_id=codec.descriptor.topic_id,
            )
        return codec

    async def describe_again(self, codec: StateCodec, error: KeyholeError, deadline: float) -> None:
        """What the codec was made of is outdated. Raises the error where nothing newer comes in time."""
        self._reads().outdated(codec)
        await await_newer(self._links, lambda: self.codec(deadline), codec, error, deadline)
