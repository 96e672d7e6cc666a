"""One scan on its way through the proxy: to a copy of its key, to others until one has begun to answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from keyhole.errors import KeyholeError, NoServer
from keyhole.routing import RouteTable
from keyhole.rpc.convert import bounds_from_proto
from keyhole.rpc.scanning import scan_range
from keyhole.types import Stale
from keyhole.v1 import query_pb2 as pb
from services.client_proxy.backoff import Backoff
from services.client_proxy.course import MENDABLE, Course
from services.client_proxy.directory import Directory

_FIRST_RETRY_SECONDS, _MOST_RETRY_SECONDS = 0.01, 0.25


class Scanning:
    """Asks the copies of a key one after the other, in the order of the reader's policy, until one answers.

    A copy that is silent for the hop deadline is given up for the next one, if there is one. From its first page on an
    answer is that copy's alone, as pages of two copies may be of two epochs: if it breaks off, the call fails with
    ServerLost, and the client begins again.

    Args:
        deadline: On the event loop's clock.
    """

    def __init__(self, directory: Directory, request: pb.ScanRequest, deadline: float) -> None:
        self._directory = directory
        self._name = (request.state.application, request.state.state)
        self._request = request
        self._bounds = bounds_from_proto(request.options)
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()

    async def pages(self) -> AsyncIterator[pb.ScanResponse]:
        """At least one.

        Raises:
            UnknownApplication, UnknownState, KeyMismatch, NullKey, Unsupported: The request is wrong.
            EpochNotReached, TooStale, Unconfirmed: No copy met the reader's bounds within the deadline.
            ServerLost: The copy broke off.
            DeadlineExceeded: The message names what it waited for.
        """
        pages = await self._begun()
        try:
            async for page in pages:
                yield page
        finally:
            await pages.aclose()

    async def _begun(self) -> Pages:
        course, attempts = Course(""), 0
        backoff = Backoff(_FIRST_RETRY_SECONDS, _MOST_RETRY_SECONDS)
        while True:
            table = self._directory.table(self._name)
            start, _ = scan_range(self._directory.codec(self._name), self._request)
            addresses = self._addresses(table, int.from_bytes(start[:2], "big"))
            if not addresses:
                missing = NoServer(f"no server answers for a key group of {'/'.join(self._name)}: {table.missing}")
                course.refused("", missing, was_overdue=True)
            for address in addresses:
                attempts += 1
                found = await self._ask(address, course, alone=len(addresses) == 1)
                if found is not None:
                    return found
            delay = backoff.next()
            if self._loop.time() + delay >= self._deadline:
                raise course.too_late(attempts)
            await asyncio.sleep(delay)

    def _addresses(self, table: RouteTable, group: int) -> Sequence[str]:
        owner, copies = table.owners.addresses[group], table.copies[group]
        if self._bounds.stale is Stale.NEVER:
            return (owner,) if owner else ()
        if self._bounds.stale is Stale.ALWAYS:
            first = random.choice(table.spread).addresses[group]  # noqa: S311 - no secret
            return (first, *(address for address in copies if address != first)) if first else copies
        return copies

    async def _ask(self, address: str, course: Course, *, alone: bool) -> Pages | None:
        """One copy; None: it did not answer, and `course` knows why."""
        remaining = self._deadline - self._loop.time()
        if remaining <= 0:
            raise course.too_late(1)
        link = self._directory.link(address)
        if link is None:
            gone = NoServer(f"server {address} is no longer among the discovered ones")
            course.refused(address, gone, was_overdue=True)
            return None
        pages = Pages(link.scan(self._request, remaining))
        try:
            async with asyncio.timeout(remaining if alone else min(remaining, self._directory.hop_seconds)):
                await pages.begin()
        except TimeoutError:
            await pages.aclose()
            self._directory.suspect(address)
            return None
        except KeyholeError as error:
            await pages.aclose()
            if not isinstance(error, MENDABLE):
                raise
            course.refused(address, error, was_overdue=True)
            return None
        return pages


class Pages:
    """Pages, of which the first is waited for apart."""

    def __init__(self, pages: AsyncGenerator[pb.ScanResponse]) -> None:
        self._pages = pages
        self._first: pb.ScanResponse | None = None

    async def begin(self) -> None:
        self._first = await anext(self._pages)

    def __aiter__(self) -> AsyncIterator[pb.ScanResponse]:
        return self._all()

    async def _all(self) -> AsyncIterator[pb.ScanResponse]:
        assert self._first is not None
        yield self._first
        async for page in self._pages:
            yield page

    async def aclose(self) -> None:
        """Ends the call, should it still run."""
        await self._pages.aclose()
