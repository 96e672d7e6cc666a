"""Aggregates of all keys of a state, or of a range: some key groups at a time, what each has computed put together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from keyhole.client.wire.key_group_calls import KeyGroupCalls
from keyhole.client.wire.link import Link
from keyhole.encoding.aggregation import BoundAggregate, Partial
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of, prefix_of
from keyhole.model.aggregate_answer import AggregateAnswer
from keyhole.model.aggregates import AggregateKind, AskedAggregate
from keyhole.model.read import Source
from keyhole.rpc.convert import source_from_proto
from keyhole.rpc.convert_aggregates import aggregate_to_proto, partial_from_proto
from keyhole.rpc.scan_requests import CALLS_AT_A_TIME, check_computed
from keyhole.v1 import query_pb2 as pb


class AggregateReads:
    """Of one request. Used from the event loop's thread only.

    Args:
        deadline: Of all of it, on the event loop's clock.
    """

    def __init__(self, calls: KeyGroupCalls, aggregates: Mapping[str, AskedAggregate], deadline: float) -> None:
        self._calls = calls
        self._aggregates = aggregates
        self._asked = [aggregate_to_proto(of) for of in aggregates.values()]
        self._deadline = deadline
        self._bound: list[BoundAggregate] = []
        self._sources: dict[int, Source] = {}
        self._partials = [Partial() for _ in aggregates]

    async def answer(self) -> AggregateAnswer:
        """Once all key groups have answered. Raises KeyholeError: See AsyncClient.aggregate."""
        codec = await self._calls.begun_with(self._deadline, self._bind)
        waiting = iter(range(codec.descriptor.key_groups))
        workers = [asyncio.ensure_future(self._work(waiting)) for _ in range(CALLS_AT_A_TIME)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        values = {
            name: await self._result(of, partial)
            for name, of, partial in zip(self._aggregates, self._bound, self._partials, strict=True)
        }
        return AggregateAnswer(values, _copies(self._sources[group] for group in sorted(self._sources)))

    def _bind(self, codec: StateCodec) -> None:
        self._calls.encoded(codec)
        self._bound = [BoundAggregate(codec.descriptor, of) for of in self._aggregates.values()]

    async def _work(self, waiting: Iterator[int]) -> None:
        for key_group in waiting:
            page = await self._key_group(key_group)
            # What this one call has found is one whole.
            self._sources[key_group] = source_from_proto(page.source)
            for of, partial, found in zip(self._bound, self._partials, page.aggregates, strict=True):
                of.merge(partial, partial_from_proto(of, found, prefix_of(key_group)))

    async def _key_group(self, key_group: int) -> pb.ScanResponse:
        """The last page of its answer."""

        async def read(link: Link, codec: StateCodec) -> pb.ScanResponse:
            of, last = self._calls.key_group(codec, key_group), pb.ScanResponse()
            answer = self._calls.pages(link, codec, of, self._deadline, aggregates=self._asked)
            async with aclosing(answer) as pages:
                async for last in pages:
                    if last.map_keys:
                        break
            return last

        last = await self._calls.read_whole(read, self._deadline)
        check_computed(last)
        return last

    async def _result(self, of: BoundAggregate, partial: Partial) -> Any:
        if of.of.kind is not AggregateKind.TOP:
            return of.result(partial)
        keys, rows = [entry.key for entry in partial.top], [entry.row for entry in partial.top]
        return await self._calls.entries(keys, rows, [self._sources[group_of(key)] for key in keys], self._deadline)


def _copies(sources: Iterable[Source]) -> tuple[Source, ...]:
    """One of each copy and epoch: that with the oldest time as of which it is."""
    found: dict[Source, Source] = {}
    for source in sources:
        same = msgspec.structs.replace(source, as_of=None)
        before = found.get(same, source)
        older = source.as_of is None or (before.as_of is not None and source.as_of < before.as_of)
        found[same] = source if older else before
    return tuple(found.values())
