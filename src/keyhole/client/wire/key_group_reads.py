"""All keys of a state, read key group by key group: each is one call, whose rows are of one epoch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import grpc

from keyhole.client.wire.cut_off import is_cut_off
from keyhole.client.wire.links import CallAttempts, Link, Links
from keyhole.client.wire.newer_schema import await_newer
from keyhole.client.wire.selected_rows import SelectedRows
from keyhole.client.wire.state_reads import StateReads
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.scan_token import ScanPlace, place_of
from keyhole.encoding.storage_key import group_of, prefix_of
from keyhole.errors import (
    DeadlineExceeded,
    KeyholeError,
    ServerLost,
    StaleDescriptor,
    UnavailableError,
    ValueMismatch,
)
from keyhole.model.read import KeyedEntry, ReadBounds, Source
from keyhole.model.selection import Selection
from keyhole.model.state import StateDescriptor
from keyhole.rpc.convert import bounds_to_proto, source_from_proto
from keyhole.rpc.convert_predicates import selection_to_proto
from keyhole.rpc.scan_requests import check_goes_on
from keyhole.v1 import query_pb2 as pb


class EntriesRead(NamedTuple):
    """A page of a scan of all keys.

    Attributes:
        entries: Of one key group; none once that is read to its end.
        keys: The storage key of each.
        before: What was read before them.
        behind: What is read then; None: all.
        descriptor: Of the state.
    """

    entries: Sequence[KeyedEntry]
    keys: Sequence[bytes]
    before: ScanPlace
    behind: ScanPlace | None
    descriptor: StateDescriptor

    def token(self, given: int) -> str | None:
        """Where a scan goes on once so many of these entries were given; None: all of the state was read."""
        if given < len(self.keys):
            if not given:
                return self.before.token(self.descriptor)
            key = self.keys[given - 1]
            return ScanPlace(group_of(key), key).token(self.descriptor)
        return None if self.behind is None else self.behind.token(self.descriptor)


class KeyGroupReads:
    """One scan of all keys of a state. Used from the event loop's thread only.

    Args:
        reads: Of the state.
        seconds: How long one key group may take.
        limit: The most entries; None: all.
        after: The token to go on behind; None: from the start.
        select: Which entries, and what of each.
    """

    def __init__(
        self,
        links: Links,
        name: tuple[str, str],
        reads: Callable[[], StateReads],
        bounds: ReadBounds,
        seconds: float,
        limit: int | None,
        after: str | None,
        select: Selection,
    ) -> None:
        self._links = links
        self._name = name
        self._reads = reads
        self._bounds = bounds
        self._seconds = seconds
        self._left = limit
        self._after = after
        self._select = select
        self._selected: tuple[StateCodec, SelectedRows] | None = None
        self._loop = asyncio.get_running_loop()

    async def pages(self) -> AsyncGenerator[EntriesRead]:
        """All pages, in the order of the key groups. Close the iterator.

        Raises:
            KeyholeError: See AsyncClient.scan_all.
        """
        descriptor = (await self._begun_with()).descriptor
        self._topic_id = descriptor.topic_id
        place = place_of(self._after, descriptor) if self._after else ScanPlace()
        key_groups = descriptor.key_groups
        while place.key_group < key_groups and self._left != 0:
            async with aclosing(self._key_group(place)) as pages:
                async for entries, keys in pages:
                    before, place = place, ScanPlace(place.key_group, keys[-1])
                    if self._left is not None:
                        self._left -= len(entries)
                    yield EntriesRead(entries, keys, before, place, descriptor)
            if self._left == 0:
                return
            before, place = place, ScanPlace(place.key_group + 1)
            yield EntriesRead((), (), before, place if place.key_group < key_groups else None, descriptor)

    async def _key_group(self, place: ScanPlace) -> AsyncGenerator[tuple[list[KeyedEntry], list[bytes]]]:
        """Entries, and the storage key of each. Until the first page has come it is asked for again."""
        deadline = self._loop.time() + self._seconds
        attempts = CallAttempts(self._links, deadline)
        while True:
            codec = await self._codec(deadline)
            link = await attempts.link()
            begun = False
            try:
                async with aclosing(self._call(link, codec, place, deadline)) as pages:
                    async for page in pages:
                        begun = True
                        self._rows(codec).check_heeded(page)
                        if page.values:
                            yield await self._decoded(page, place.key_group, deadline)
            except StaleDescriptor as error:
                if begun:
                    raise
                await self._describe_again(codec, error, deadline)
            except UnavailableError as error:
                if begun:
                    raise self._broken_off(error) from error.__cause__
                if not is_cut_off(error):
                    raise attempts.told(error) from error.__cause__
                await attempts.again(error, link)
            else:
                return

    async def _begun_with(self) -> StateCodec:
        """What the scan begins with: it has the fields that are selected by."""
        deadline = self._loop.time() + self._seconds
        while True:
            codec = await self._reads().codec(deadline)
            try:
                self._rows(codec)
            except ValueMismatch as error:
                # The state may have got the field since it was described.
                self._reads().outdated(codec)
                await await_newer(self._links, lambda: self._reads().codec(deadline), codec, error, deadline)
            else:
                return codec

    def _rows(self, codec: StateCodec) -> SelectedRows:
        if self._selected is None or self._selected[0] is not codec:
            self._selected = codec, SelectedRows(codec, self._select)
        return self._selected[1]

    async def _call(
        self, link: Link, codec: StateCodec, place: ScanPlace, deadline: float
    ) -> AsyncGenerator[pb.ScanResponse]:
        request = pb.ScanRequest(
            state=pb.StateRef(application=self._name[0], state=self._name[1]),
            key_group=pb.KeyGroupScan(key_group=place.key_group, after=place.after),
            limit=self._left or 0,
            options=bounds_to_proto(self._bounds.among([place.key_group])),
            topic_id=codec.descriptor.topic_id,
            selection=selection_to_proto(self._select),
        )
        call = link.stub.Scan(request, timeout=max(0.001, deadline - self._loop.time()))
        begun = False
        try:
            async for page in call:
                link.heard()
                if not begun:
                    check_goes_on(codec, request, page, link.target)
                begun = begun or bool(page.map_keys)
                yield page
        except grpc.RpcError as error:
            raise link.failed(error) from error
        finally:
            call.cancel()

    async def _codec(self, deadline: float) -> StateCodec:
        codec = await self._reads().codec(deadline)
        if codec.descriptor.topic_id != self._topic_id:
            raise StaleDescriptor(
                f"state {'/'.join(self._name)} was made anew while all its keys were read; begin the scan again",
                topic_id=codec.descriptor.topic_id,
            )
        return codec

    async def _decoded(
        self, page: pb.ScanResponse, key_group: int, deadline: float
    ) -> tuple[list[KeyedEntry], list[bytes]]:
        source, prefix = source_from_proto(page.source), prefix_of(key_group)
        keys = [prefix + key for key in page.map_keys]
        while True:
            codec = await self._codec(deadline)
            try:
                values = self._rows(codec).values(page)
                entries = [_entry(codec, key, value, source) for key, value in zip(keys, values, strict=True)]
            except (StaleDescriptor, ValueMismatch) as error:
                # A row of a schema that was added since the state was described.
                await self._describe_again(codec, error, deadline)
            else:
                return entries, keys

    async def _describe_again(self, codec: StateCodec, error: KeyholeError, deadline: float) -> None:
        """What the codec was made of is outdated. Raises the error where nothing newer comes in time."""
        self._reads().outdated(codec)
        await await_newer(self._links, lambda: self._codec(deadline), codec, error, deadline)

    def _broken_off(self, error: KeyholeError) -> KeyholeError:
        name = "/".join(self._name)
        what = f"a scan of all keys of state {name} broke off; go on behind its token ({error.message})"
        kind = DeadlineExceeded if isinstance(error, DeadlineExceeded) else ServerLost
        told = kind(what)
        told.facts = error.facts
        return told


def _entry(codec: StateCodec, storage_key: bytes, value: Any, source: Source) -> KeyedEntry:
    key, map_key = codec.entry(storage_key)
    if not key:  # of a broadcast state, whose keys are the entries of one
        key, map_key = map_key, ()
    return KeyedEntry(_single(key), _single(map_key) if map_key else None, value, source)


def _single(values: tuple[object, ...]) -> object:
    return values[0] if len(values) == 1 else values
