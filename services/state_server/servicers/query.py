"""The reads of one state server: the service Query over its tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, closing
from typing import Any

import grpc

from keyhole.clock import Clock
from keyhole.errors import (
    KeyholeError,
    KeyTooLong,
    StaleDescriptor,
    UnavailableError,
)
from keyhole.metrics.counters import ReadCounts
from keyhole.rpc.convert import bounds_from_proto, descriptor_to_proto
from keyhole.rpc.frames import (
    MAX_VALUE_BYTES,
    AskAgain,
    Failure,
    check_answer,
    check_values,
    cut_to_frame,
    failures_to_proto,
    frame_is_full,
    portions,
)
from keyhole.rpc.read_requests import check_consistency, check_frame, check_lookup, key_count
from keyhole.rpc.scan_requests import scan_range
from keyhole.rpc.status import to_proto
from keyhole.security.authentication import current
from keyhole.security.policy import Verb
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc
from services.state_server.read.answers import CopyAnswers
from services.state_server.read.holdings import holdings
from services.state_server.read.scans import ScanLimits, Scans
from services.state_server.read.table import Table
from services.state_server.registry import Registry
from services.state_server.servicers.lookups import look_up, look_up_apart, storage_key

_Context = grpc.aio.ServicerContext[Any, Any]


class QueryServicer(query_pb2_grpc.QueryServicer):
    """See protos/keyhole/v1/query.proto. Answers for this server's key groups only."""

    def __init__(self, registry: Registry, clock: Clock, scans: ScanLimits | None = None) -> None:
        self._registry = registry
        self._clock = clock
        self._scans = Scans(scans or ScanLimits())
        self._counts = registry.counts

    @property
    def open_scans(self) -> int:
        """How many scans are under way."""
        return self._scans.under_way

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
        return pb.DescribeStateResponse(descriptor=descriptor, holdings=holdings(table, descriptor, sizes=True))

    async def Get(self, request: pb.GetRequest, context: _Context) -> pb.GetResponse:  # noqa: N802 - gRPC
        """Looks one key up, among the key groups that this server holds."""
        answers = self._counted_get(request.state, [request.key], request.options)
        return pb.GetResponse(answer=answers[0])

    async def GetMany(self, request: pb.GetManyRequest, context: _Context) -> pb.GetManyResponse:  # noqa: N802 - gRPC
        """Several keys, all of them this server's, as of one epoch."""
        return pb.GetManyResponse(answers=self._counted_get(request.state, request.keys, request.options))

    async def Lookup(  # noqa: N802 - gRPC
        self, requests: AsyncIterator[pb.LookupRequest], context: _Context
    ) -> AsyncIterator[pb.LookupResponse]:
        """Frames. A frame that can't be answered fails alone; the stream goes on."""
        async for request in requests:
            yield self._frame(request)

    async def Scan(self, request: pb.ScanRequest, context: _Context) -> AsyncIterator[pb.ScanResponse]:  # noqa: N802 - gRPC
        """The entries of one key, as of one epoch however long it takes to read them."""
        began = self._clock.monotonic()
        reads = self._reads(request.state)
        try:
            async with aclosing(self._scan(request)) as responses:
                async for response in responses:
                    reads.entries += len(response.values)
                    reads.entry_bytes += sum(map(len, response.values)) + sum(map(len, response.map_keys))
                    yield response
        except KeyholeError as error:
            reads.failed[error.reason] += 1
            raise
        finally:
            reads.scans += 1
            self._counts.scan_seconds.observe(self._clock.monotonic() - began)

    async def _scan(self, request: pb.ScanRequest) -> AsyncGenerator[pb.ScanResponse]:
        table, options = self._table(request.state), request.options
        check_consistency(options)
        within, bounds = scan_range(table.codec, request), bounds_from_proto(options)
        known, sent = len(within.prefix), False
        with (
            self._scans.open(lambda: table.scan(within, bounds, descending=request.descending)) as scanned,
            closing(self._scans.pages(scanned, request.limit)) as pages,
        ):
            for page in pages:
                rows = _rows(table, page.rows, options)
                check_values(table.name, rows, "an entry")
                for part in portions(map(len, rows)):
                    sent = True
                    map_keys = [key[known:] for key in page.keys[part]]
                    yield pb.ScanResponse(source=scanned.source, map_keys=map_keys, values=rows[part])
                await asyncio.sleep(0)
            if not sent:
                yield pb.ScanResponse(source=scanned.source)

    async def Status(self, request: pb.StatusRequest, context: _Context) -> pb.StatusResponse:  # noqa: N802 - gRPC
        """What this server holds, with sizes."""
        return pb.StatusResponse(servers=[self._registry.status()])

    def _table(self, state: pb.StateRef) -> Table:
        return self._registry.table(state.application, state.state)

    def _reads(self, state: pb.StateRef) -> ReadCounts:
        table = self._registry.tables.get((state.application, state.state))
        # Names that somebody made up must not become labels.
        return self._counts.elsewhere if table is None else table.reads

    def _counted_get(self, state: pb.StateRef, keys: Sequence[pb.Key], options: pb.ReadOptions) -> list[pb.Answer]:
        began = self._clock.monotonic()
        reads = self._reads(state)
        try:
            return self._get(state, keys, options)
        except KeyholeError as error:
            reads.failed[error.reason] += len(keys)
            raise
        finally:
            self._count(reads, len(keys), began)

    def _count(self, reads: ReadCounts, keys: int, began: float) -> None:
        reads.frames += 1
        reads.keys += keys
        self._counts.frame_keys.observe(keys)
        self._counts.lookup_seconds.observe(self._clock.monotonic() - began)

    def _get(self, state: pb.StateRef, keys: Sequence[pb.Key], options: pb.ReadOptions) -> list[pb.Answer]:
        check_lookup(options, len(keys))
        table = self._table(state)
        answers = look_up(table, [storage_key(table, key) for key in keys], options, MAX_VALUE_BYTES)
        rows = _formatted(table, answers, options)
        check_answer(table.name, rows, len(keys))
        sources, source_of = answers.sources, answers.source_of or [0] * len(rows)
        return [
            pb.Answer(found=bool(row), value=row, source=sources[index])
            for row, index in zip(rows, source_of, strict=True)
        ]

    def _frame(self, request: pb.LookupRequest) -> pb.LookupResponse:
        began = self._clock.monotonic()
        count = key_count(request)
        reads = self._reads(request.state)
        try:
            return self._answer(request)
        except KeyholeError as error:
            reads.failed[error.reason] += count
            return pb.LookupResponse(
                frame=request.frame, values=[b""] * count, failures=[pb.LookupFailure(error=to_proto(error))]
            )
        finally:
            self._count(reads, count, began)

    def _answer(self, request: pb.LookupRequest) -> pb.LookupResponse:
        options = request.options
        current().check(Verb.READ, request.state.application, request.state.state)
        table = self._table(request.state)
        check_frame(request)
        if request.keys:
            keys: Sequence[bytes] = [storage_key(table, key) for key in request.keys]
        else:
            if request.topic_id != table.descriptor.topic_id:
                raise StaleDescriptor(
                    f"state {table.name} is not the one these storage keys were made for; describe it again",
                    topic_id=table.descriptor.topic_id,
                )
            keys = request.storage_keys
        check_lookup(options, len(keys))
        failures: dict[int, Failure] = {}
        try:
            answers = look_up(table, keys, options)
        except (UnavailableError, KeyTooLong):
            # Other keys, which travelled with them, must neither wait for these nor fail with them.
            answers, failures = look_up_apart(table, keys, options)
        values = _formatted(table, answers, options)
        unread = len(keys) - len(values)
        if unread or answers.large or options.format == pb.VALUE_FORMAT_JSON:
            failures |= cut_to_frame(table.name, values)
            if unread:
                failures |= dict.fromkeys(range(len(values), len(keys)), frame_is_full(table.name))
                values += [b""] * unread
        for failure in failures.values():
            if not isinstance(failure, AskAgain):
                table.reads.failed[failure.reason] += 1
        return pb.LookupResponse(
            frame=request.frame,
            values=values,
            sources=answers.sources,
            source_of=[*answers.source_of, *[0] * unread] if answers.source_of else None,
            failures=failures_to_proto(failures) if failures else None,
        )


def _formatted(table: Table, answers: CopyAnswers, options: pb.ReadOptions) -> list[bytes]:
    """A row is never empty, so empty bytes mean absent."""
    return _rows(table, [row or b"" for row in answers.rows], options)


def _rows(table: Table, rows: list[bytes], options: pb.ReadOptions) -> list[bytes]:
    if options.format == pb.VALUE_FORMAT_JSON:
        return [table.codec.row_to_json(row).encode() if row else b"" for row in rows]
    return rows
