"""The reads of one state server: the service Query over its tables."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple

import grpc

from keyhole.errors import (
    KeyholeError,
    MalformedRequest,
    Overloaded,
    StaleDescriptor,
    UnavailableError,
    Unsupported,
)
from keyhole.rpc.convert import bounds_from_proto, descriptor_to_proto, key_from_proto
from keyhole.rpc.scanning import scan_range
from keyhole.rpc.status import to_proto
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc, state_pb2
from services.state_server.copies import Answers
from services.state_server.registry import Registry
from services.state_server.table import Table

_Context = grpc.aio.ServicerContext[Any, Any]

# Enough for a frame of any client of ours, and small enough not to hold the event loop for more than some milliseconds.
MAX_KEYS_PER_REQUEST = 16_384
# One page of a scan takes less than that.
PAGE_ENTRIES, PAGE_BYTES = 500, 256 << 10
# Each may keep an older snapshot, and so old pages of the store, alive.
MAX_SCANS = 64

_COMMITTED = (pb.CONSISTENCY_UNSPECIFIED, pb.CONSISTENCY_COMMITTED)


class QueryServicer(query_pb2_grpc.QueryServicer):
    """See protos/keyhole/v1/query.proto. Answers for this server's key groups only."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._scans = 0

    async def ListStates(self, request: pb.ListStatesRequest, context: _Context) -> pb.ListStatesResponse:  # noqa: N802 - gRPC
        """All states of which it has key groups."""
        wanted = request.application
        return pb.ListStatesResponse(
            states=[
                descriptor_to_proto(table.descriptor)
                for (application, _), table in sorted(self._registry.tables.items())
                if not wanted or application == wanted
            ]
        )

    async def DescribeState(self, request: pb.DescribeStateRequest, context: _Context) -> pb.DescribeStateResponse:  # noqa: N802 - gRPC
        """One state, and what this server holds of it."""
        table = self._table(request.state)
        descriptor = descriptor_to_proto(table.descriptor)
        return pb.DescribeStateResponse(descriptor=descriptor, holdings=table.holdings(descriptor, sizes=True))

    async def Get(self, request: pb.GetRequest, context: _Context) -> pb.GetResponse:  # noqa: N802 - gRPC
        """One key."""
        answers = self._get(request.state, [request.key], request.options)
        return pb.GetResponse(answer=answers[0])

    async def GetMany(self, request: pb.GetManyRequest, context: _Context) -> pb.GetManyResponse:  # noqa: N802 - gRPC
        """Several keys, all of them this server's, as of one epoch."""
        return pb.GetManyResponse(answers=self._get(request.state, request.keys, request.options))

    async def Lookup(  # noqa: N802 - gRPC
        self, requests: AsyncIterator[pb.LookupRequest], context: _Context
    ) -> AsyncIterator[pb.LookupResponse]:
        """Frames. A frame that can't be answered fails alone; the stream goes on."""
        async for request in requests:
            yield self._frame(request)

    async def Scan(self, request: pb.ScanRequest, context: _Context) -> AsyncIterator[pb.ScanResponse]:  # noqa: N802 - gRPC
        """The entries of one key, as of one epoch however long it takes to read them."""
        table = self._table(request.state)
        if self._scans >= MAX_SCANS:
            raise Overloaded(f"{self._scans} scans are under way on this server, and no more may be; try again")
        options = request.options
        _check(options, 1)
        bounds = bounds_from_proto(options)
        start, stop = scan_range(table.codec, request)
        scanned = table.scan(start, stop, bounds, descending=request.descending)
        self._scans += 1
        try:
            limit = request.limit or None
            async for page in _pages(table, itertools.islice(scanned.entries, limit), options):
                yield pb.ScanResponse(source=scanned.source, map_keys=page.keys, values=page.rows)
        finally:
            self._scans -= 1
            scanned.close()

    async def Status(self, request: pb.StatusRequest, context: _Context) -> pb.StatusResponse:  # noqa: N802 - gRPC
        """This server."""
        return pb.StatusResponse(servers=[self._registry.status()])

    def _table(self, state: pb.StateRef) -> Table:
        return self._registry.table(state.application, state.state)

    def _get(self, state: pb.StateRef, keys: Sequence[pb.Key], options: pb.ReadOptions) -> list[pb.Answer]:
        _check(options, len(keys))
        table = self._table(state)
        answers = _lookup(table, [_storage_key(table, key) for key in keys], options)
        rows = _formatted(table, answers, options)
        sources, source_of = answers.sources, answers.source_of or [0] * len(rows)
        return [
            pb.Answer(found=bool(row), value=row, source=sources[index])
            for row, index in zip(rows, source_of, strict=True)
        ]

    def _frame(self, request: pb.LookupRequest) -> pb.LookupResponse:
        try:
            return self._answer(request)
        except KeyholeError as error:
            count = len(request.storage_keys) or len(request.keys)
            return pb.LookupResponse(
                frame=request.frame, values=[b""] * count, failures=[pb.LookupFailure(error=to_proto(error))]
            )

    def _answer(self, request: pb.LookupRequest) -> pb.LookupResponse:
        options = request.options
        table = self._table(request.state)
        if request.keys:
            if request.storage_keys:
                raise MalformedRequest("a frame has either keys or storage_keys, not both")
            keys: Sequence[bytes] = [_storage_key(table, key) for key in request.keys]
        else:
            if request.topic_id != table.descriptor.topic_id:
                raise StaleDescriptor(
                    f"state {table.name} is not the one these storage keys were made for; describe it again",
                    topic_id=table.descriptor.topic_id,
                )
            keys = request.storage_keys
        _check(options, len(keys))
        failures: list[pb.LookupFailure] = []
        try:
            answers = _lookup(table, keys, options)
        except UnavailableError:
            # Keys of other key groups, which travelled with them, must not wait for these.
            answers, failures = _lookup_apart(table, keys, options)
        return pb.LookupResponse(
            frame=request.frame,
            values=_formatted(table, answers, options),
            sources=answers.sources,
            source_of=answers.source_of,
            failures=failures,
        )


def _lookup(table: Table, keys: Sequence[bytes], options: pb.ReadOptions) -> Answers:
    bounds = bounds_from_proto(options)
    return table.lookup(keys, bounds.min_epoch, bounds.stale, bounds.max_staleness_ms)


def _lookup_apart(
    table: Table, keys: Sequence[bytes], options: pb.ReadOptions
) -> tuple[Answers, list[pb.LookupFailure]]:
    """Key group by key group, each as of the same moment; those that can't be read fail alone."""
    groups: dict[bytes, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key[:2], []).append(index)
    rows: list[bytes | None] = [None] * len(keys)
    source_of = [0] * len(keys)
    sources: list[state_pb2.Source] = []
    failures = []
    for indexes in groups.values():
        try:
            part = _lookup(table, [keys[index] for index in indexes], options)
        except UnavailableError as error:
            failures.append(pb.LookupFailure(indexes=indexes, error=to_proto(error)))
            continue
        for index, row in zip(indexes, part.rows, strict=True):
            rows[index], source_of[index] = row, len(sources)
        # One key group of one copy stands for one thing.
        sources.append(part.sources[0])
    return Answers(rows, sources, source_of), failures


class _Page(NamedTuple):
    keys: list[bytes]
    rows: list[bytes]


async def _pages(table: Table, entries: Iterable[tuple[bytes, bytes]], options: pb.ReadOptions) -> AsyncIterator[_Page]:
    """At least one. Between two of them other calls get their turn."""
    page, size, prefix, first = _Page([], []), 0, 0, True
    for key, row in entries:
        prefix = prefix or table.codec.prefix_length(key)
        page.keys.append(key[prefix:])
        page.rows.append(table.codec.row_to_json(row).encode() if options.format == pb.VALUE_FORMAT_JSON else row)
        size += len(key) + len(row)
        if len(page.keys) == PAGE_ENTRIES or size >= PAGE_BYTES:
            yield page
            await asyncio.sleep(0)
            page, size, first = _Page([], []), 0, False
    if page.keys or first:
        yield page


def _storage_key(table: Table, key: pb.Key) -> bytes:
    values = key_from_proto(key)
    return table.codec.storage_key(values if len(values) != 1 else values[0])


def _check(options: pb.ReadOptions, keys: int) -> None:
    if options.consistency not in _COMMITTED:
        raise Unsupported("only COMMITTED reads are supported by this version")
    if keys > MAX_KEYS_PER_REQUEST:
        raise MalformedRequest(f"{keys:,} keys in one request; at most {MAX_KEYS_PER_REQUEST:,}", keys=keys)


def _formatted(table: Table, answers: Answers, options: pb.ReadOptions) -> list[bytes]:
    """A row is never empty, so empty bytes mean absent."""
    if options.format == pb.VALUE_FORMAT_JSON:
        return [table.codec.row_to_json(row).encode() if row else b"" for row in answers.rows]
    return [row or b"" for row in answers.rows]
