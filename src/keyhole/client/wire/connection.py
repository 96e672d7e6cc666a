"""What a client has once it is used: connections to its targets, and what it knows of the states."""

# ruff: noqa: ASYNC109 - a timeout is part of the request: it travels to the server, which then stops working on it

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any, TypeVar

import grpc

from keyhole.client.bounds import seconds_of
from keyhole.client.options import Key, RequestedRead
from keyhole.client.routing.direct_reads import DirectReads
from keyhole.client.routing.direct_servers import DirectServers
from keyhole.client.scanned_entries import ScannedEntries
from keyhole.client.wire.aggregate_reads import AggregateReads
from keyhole.client.wire.cut_off import is_cut_off
from keyhole.client.wire.key_bounds import AskedKeys, KeyBounds
from keyhole.client.wire.key_group_calls import KeyGroupCalls
from keyhole.client.wire.key_group_epochs import KeyGroupBatch
from keyhole.client.wire.key_group_reads import EntriesRead, KeyGroupReads
from keyhole.client.wire.links import CallAttempts, Links
from keyhole.client.wire.lookups import LookupBatch, Whole
from keyhole.client.wire.ordered_reads import OrderedReads
from keyhole.client.wire.scanner import Scan, Scanner
from keyhole.client.wire.state_reads import StateReads
from keyhole.client.wire.watch_stream import StoredMessage, WatchMessage, WatchOptions, WatchStream
from keyhole.encoding.codec import StateCodec
from keyhole.errors import InternalError, KeyholeError
from keyhole.model.aggregate_answer import AggregateAnswer
from keyhole.model.aggregates import AskedAggregate
from keyhole.model.given import check_names
from keyhole.model.read import Answer, ReadBounds, Source
from keyhole.model.selection import Selection
from keyhole.model.state import StateDescriptor
from keyhole.rpc import convert
from keyhole.rpc.rotation import Renewing
from keyhole.security.credentials import Credentials
from keyhole.v1 import query_pb2

# Of a `get_many`, and of key groups; the others wait. As many as a request may have, and a quarter of what a connection
# lets wait, so that one caller leaves room for others.
_KEYS_AT_ONCE = 16_384
# A timeout that has passed, where one must be above 0.
_OVER = 0.001

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

Alike = tuple[str, str, RequestedRead]
"""Application, state, and how a lookup was asked for: those that are alike in all of it travel together."""


class Connection:
    """Of one event loop, and used from its thread only.

    Attributes:
        loop: The one that it was made in.
        turn: What was asked for in this turn of the event loop. `batch` adds to it.

    Args:
        directly: What servers are shown, where lookups are to go to them; None: all goes to the targets.
    """

    def __init__(
        self, targets: Sequence[str], shown: Sequence[Renewing | None], directly: Credentials | None = None
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._links = Links(targets, shown)
        self._servers = None if directly is None else DirectServers(self._links, directly)
        self._states: dict[tuple[str, str], StateReads] = {}
        self.turn: dict[Alike, LookupBatch] = {}
        self._closed: KeyholeError | None = None

    def batch(self, alike: Alike) -> LookupBatch:
        """What lookups that are alike are added to before the event loop's turn is over: they travel together.

        Raises:
            MalformedRequest: A policy, a bound or a timeout that there is not.
        """
        batch = self.turn.get(alike)
        if batch is None:
            bounds, seconds = alike[2].read()
            deadline = self.loop.time() + seconds
            if not self.turn:
                self.loop.call_soon(self._flush)
            batch = self.turn[alike] = LookupBatch(bounds, deadline)
        return batch

    async def many(self, application: str, state: str, keys: Sequence[Key], asked: RequestedRead) -> list[Answer]:
        """The answers to any number of keys, in their order: more than some thousands in turns, all within the one
        timeout. Raises as AsyncClient.get_many.
        """
        answers: list[Answer] = []
        began = self.loop.time()
        for first in range(0, len(keys), _KEYS_AT_ONCE):
            left = asked
            if first:
                seconds = seconds_of("timeout", asked.timeout) + began - self.loop.time()
                left = asked._replace(timeout=max(seconds, _OVER))
            batch = self.batch((application, state, left))
            part = keys[first : first + _KEYS_AT_ONCE]
            future: asyncio.Future[list[Answer]] = self.loop.create_future()
            batch.keys += part
            batch.waiters += Whole(future, len(part), first, len(keys)).slots()
            answers += await future
        return answers

    async def scan(self, scan: Scan, timeout: float) -> ScannedEntries:
        """All entries of the scan, of one epoch. `timeout` is in seconds. Raises as AsyncClient.scan."""
        deadline = self.loop.time() + timeout
        reads = partial(self._reads, scan.application, scan.state)
        with self._told_if_closed():
            return await Scanner(self._links).entries(scan, reads, deadline)

    def scan_all(
        self,
        name: tuple[str, str],
        bounds: ReadBounds,
        seconds: float,
        limit: int | None,
        after: str | None,
        asked: AskedKeys,
    ) -> AsyncGenerator[EntriesRead]:
        """All keys of a state, page by page. Close the iterator. Raises as AsyncClient.scan_all."""
        calls = KeyGroupCalls(
            self._links,
            name,
            partial(self._reads, *name),
            bounds,
            asked.select,
            asked.within,
            descending=asked.descending,
            number=asked.number,
        )
        reads: KeyGroupReads | OrderedReads
        if asked.ordered:
            reads = OrderedReads(calls, seconds, limit, after, descending=asked.descending)
        else:
            reads = KeyGroupReads(self._links, name, calls, seconds, limit, after, asked.key_groups)
        return self._each(reads.pages())

    async def aggregate(
        self,
        name: tuple[str, str],
        bounds: ReadBounds,
        seconds: float,
        aggregates: Mapping[str, AskedAggregate],
        select: Selection,
        within: KeyBounds,
    ) -> AggregateAnswer:
        """Aggregates of a range of keys. `seconds` is for all key groups. Raises as AsyncClient.aggregate."""
        calls = KeyGroupCalls(self._links, name, partial(self._reads, *name), bounds, select, within)
        with self._told_if_closed():
            return await AggregateReads(calls, aggregates, self.loop.time() + seconds).answer()

    def watch(
        self, name: tuple[str, str], options: WatchOptions, seconds: float, after: str
    ) -> AsyncGenerator[WatchMessage]:
        """Messages of a watch. Close the iterator. Raises as AsyncClient.watch."""
        return self._each(self._watch(name, options, seconds, after).messages())

    def stored(
        self, name: tuple[str, str], options: WatchOptions, seconds: float, after: str
    ) -> AsyncGenerator[StoredMessage]:
        """The same, and nothing of it decoded. Close the iterator. Raises as AsyncClient.watch."""
        return self._each(self._watch(name, options, seconds, after).stored())

    def _watch(self, name: tuple[str, str], options: WatchOptions, seconds: float, after: str) -> WatchStream:
        return WatchStream(self._links, name, partial(self._reads, *name), options, seconds, after)

    async def _each(self, given: AsyncGenerator[_T]) -> AsyncGenerator[_T]:
        """What it gives, until it ends or this is closed."""
        with self._told_if_closed():
            async with aclosing(given) as items:
                async for item in items:
                    yield item

    async def call(self, method: str, request: object, timeout: float) -> Any:
        """The response of one of the service's methods of one response. Raises KeyholeError."""
        deadline = self.loop.time() + timeout
        attempts = CallAttempts(self._links, deadline)
        while True:
            link = await attempts.link()
            try:
                with self._told_if_closed():
                    response = await getattr(link.stub, method)(request, timeout=deadline - self.loop.time())
            except grpc.RpcError as error:
                why = link.failed(error)
                if not is_cut_off(why):
                    raise attempts.error_for_caller(why) from error
                await attempts.again(why, link)
            else:
                link.heard()
                return response

    def known(self, application: str, state: str) -> StateCodec | None:
        """By the descriptor that a read of the state has used last; None: there was none. Any thread."""
        reads = self._states.get((application, state))
        return None if reads is None else reads.known

    async def describe(self, application: str, state: str, timeout: float) -> StateDescriptor:
        """The state's descriptor as the target has it now. `timeout` is in seconds. Raises as
        AsyncClient.describe_state.
        """
        check_names(application, state)
        request = query_pb2.DescribeStateRequest(state=query_pb2.StateRef(application=application, state=state))
        response: query_pb2.DescribeStateResponse = await self.call("DescribeState", request, timeout)
        return convert.descriptor_from_proto(response.descriptor)

    async def epochs(self, name: tuple[str, str], key_groups: int, timeout: float, as_of: int = 0) -> list[Source]:
        """At which epoch each key group of a state can be read now, and of whom. Raises as AsyncClient.get.

        Args:
            key_groups: So many, from the first one on.
            as_of: They are read as of this epoch; 0: as of the last one of each.
        """
        deadline = self.loop.time() + timeout
        sources: list[Source] = []
        for first in range(0, key_groups, _KEYS_AT_ONCE):
            batch = KeyGroupBatch(ReadBounds(as_of=as_of), deadline)
            batch.keys += range(first, min(first + _KEYS_AT_ONCE, key_groups))
            future: asyncio.Future[list[Answer]] = self.loop.create_future()
            batch.waiters += Whole(future, len(batch.keys)).slots()
            self._reads(*name).submit(batch)
            sources += [answer.source for answer in await future]
        return sources

    async def close(self, error: KeyholeError) -> None:
        """What is under way fails with the error. Called once."""
        self._closed = error
        self._flush()
        for reads in self._states.values():
            reads.close(error)
        # They know this connection: without them it is gone with the last one who uses it, and gRPC's thread with it.
        self._states.clear()
        if self._servers is not None:
            await self._servers.close(error)
        await self._links.close(error)

    def _flush(self) -> None:
        """Once per turn of the event loop in which something was asked for."""
        turn, self.turn = self.turn, {}
        for (application, state, *_), batch in turn.items():
            if self._closed is not None:
                batch.fail(self._closed)
                continue
            try:
                self._reads(application, state).submit(batch)
            except KeyholeError as error:
                batch.fail(error)
            except Exception:  # noqa: BLE001 - the top of a loop: nobody else would end the waits
                _log.exception("lookups could not be started")
                batch.fail(InternalError("the lookup could not be started, by a bug; the client's log has the cause"))

    def _reads(self, application: str, state: str) -> StateReads:
        """Those of the state, made where there are none. Raises MalformedRequest: it can't be called so."""
        check_names(application, state)
        name = (application, state)
        if (reads := self._states.get(name)) is not None:
            return reads

        def forget() -> None:
            self._states.pop(name, None)

        direct = None if self._servers is None else DirectReads(self._servers, name)
        reads = self._states[name] = StateReads(self._links, application, state, self.describe, forget, direct)
        return reads

    @contextmanager
    def _told_if_closed(self) -> Iterator[None]:
        """Closing the channel cancels its calls, and refuses others: then it says so. The caller's own cancellation
        goes through.
        """
        try:
            yield
        except (asyncio.CancelledError, grpc.aio.UsageError):
            task = asyncio.current_task()
            if self._closed is not None and (task is None or not task.cancelling()):
                raise self._closed from None
            raise
