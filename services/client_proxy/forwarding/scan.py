"""Sends one scan through the proxy: to copies of its key, one after the other, until one has begun to answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass

from keyhole.backoff import Backoff
from keyhole.client.routing.key_attempts import MENDABLE, KeyAttempts
from keyhole.client.routing.routes import no_server, scan_copies
from keyhole.encoding.storage_key import group_of
from keyhole.errors import DeadlineExceeded, InternalError, KeyholeError, NoServer, ServerLost
from keyhole.rpc.convert import bounds_from_proto
from keyhole.rpc.scan_requests import check_goes_on, scan_range
from keyhole.v1 import query_pb2 as pb
from services.client_proxy.directory import Directory

_FIRST_RETRY_SECONDS, _MOST_RETRY_SECONDS = 0.01, 0.25


@dataclass(frozen=True)
class _Begun:
    """An answer that has begun: its first page has come."""

    address: str
    first: pb.ScanResponse
    others: AsyncGenerator[pb.ScanResponse]


class Scanning:
    """Asks the copies of a key in the order of the reader's policy, until one has answered with a page.

    After a copy that refuses, the next one is asked at once. One that is silent for the hop deadline is not given up:
    the next one is asked as well, and whoever begins first goes on. From its first page on the answer is that copy's
    alone, as pages of two copies may be of two epochs: if it breaks off, the call fails with ServerLost, and the client
    begins again.

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
        self._asked: dict[asyncio.Task[_Begun], str] = {}
        # Never done.
        self._nobody: asyncio.Future[_Begun] = self._loop.create_future()
        # The one that was asked last, until it is overdue.
        self._hope = ""
        self._due = self._grace = 0.0
        self._retry_at: float | None = None
        self._tried = KeyAttempts("")
        self._attempts = 0
        self._backoff = Backoff(_FIRST_RETRY_SECONDS, _MOST_RETRY_SECONDS)

    async def pages(self) -> AsyncGenerator[pb.ScanResponse]:
        """Yields the pages of the scan, at least one. Close the iterator.

        Raises:
            UnknownApplication, UnknownState, KeyMismatch, NullKey, Unsupported: The request is wrong.
            StaleDescriptor: It means a state that was made anew since.
            EpochNotReached, TooStale, Unconfirmed: No copy met the reader's bounds within the deadline.
            Unsupported: Or the server is of a version that knows no scans of a key group.
            Overloaded: A server has too many scans under way.
            ServerLost: The copy broke off.
            DeadlineExceeded: The message names what it waited for.
        """
        async with AsyncExitStack() as open_calls:
            open_calls.push_async_callback(self._end_others)
            begun = await self._first()
            open_calls.push_async_callback(begun.others.aclose)
            await self._end_others()
            checked = self._goes_on(begun.address, begun.first)
            yield begun.first
            try:
                async for page in begun.others:
                    checked = checked or self._goes_on(begun.address, page)
                    yield page
            except MENDABLE as error:
                raise ServerLost(
                    f"server {begun.address} broke off in the middle of a scan; begin it again ({error.message})",
                    address=begun.address,
                ) from error

    def _goes_on(self, address: str, page: pb.ScanResponse) -> bool:
        """Whether the page has said that the server knows what it was asked for. Raises Unsupported: it doesn't."""
        check_goes_on(self._directory.codec(self._name), self._request, page, f"state server {address}")
        return bool(page.map_keys)

    async def _first(self) -> _Begun:
        while True:
            now = self._loop.time()
            if now >= self._deadline:
                raise self._too_late()
            if not self._hope:
                self._ask_next(now)
            begun = await self._heard(self._patience(now))
            if begun is not None:
                return begun

    def _ask_next(self, now: float) -> None:
        """Asks another copy. Where there is none, all are begun with again, a moment later."""
        tried = self._tried
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            tried.begin_again()
        table = self._directory.table(self._name)
        prefix = scan_range(self._directory.codec(self._name), self._request).prefix
        copies = scan_copies(table, group_of(prefix), self._bounds.stale)
        address = next((copy for copy in copies if copy not in tried.asked), "")
        if address:
            for silent in tried.under_way:
                self._directory.suspect(silent)
            self._attempts += 1
            tried.sent(address)
            self._asked[self._loop.create_task(self._begin(address))] = address
            self._hope, self._due = address, now + self._directory.hop_seconds
            self._grace = self._directory.hop_seconds / 2
            return
        if not copies:
            tried.cause = no_server(self._name, table)
        if self._retry_at is None:
            self._retry_at = now + self._backoff.next()
            if self._retry_at >= self._deadline and not self._asked:
                raise self._too_late()

    async def _begin(self, address: str) -> _Begun:
        link = self._directory.link(address)
        if link is None:
            raise NoServer(f"server {address} is no longer among the discovered ones")
        pages = link.scan(self._request, max(0.001, self._deadline - self._loop.time()))
        try:
            return _Begun(address, await anext(pages), pages)
        except StopAsyncIteration:
            raise InternalError(f"server {address} answered a scan without a page, by a bug of its") from None

    def _patience(self, now: float) -> float:
        """Returns the seconds for which there is nothing to do but to wait."""
        until = self._due if self._hope else self._deadline if self._retry_at is None else self._retry_at
        return max(0.0, min(until, self._deadline) - now)

    async def _heard(self, seconds: float) -> _Begun | None:
        """Waits so long for those that were asked. None: none of them has begun."""
        asked = self._asked or (self._nobody,)
        done, _ = await asyncio.wait(asked, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in self._asked.keys() & done:
            try:
                begun = task.result()
            except KeyholeError as error:
                self._refused(self._asked.pop(task), error)
            else:
                del self._asked[task]
                return begun
        if not done and self._hope and self._loop.time() >= self._due:
            self._overdue()
        return None

    def _overdue(self) -> None:
        now = self._loop.time()
        if now - self._due > self._grace > 0:
            # This process itself is late: the answer may be waiting to be read. Asking others would only add to it.
            self._due, self._grace = now + self._grace, 0.0
            return
        self._tried.overdue(self._hope)
        self._hope = ""

    def _refused(self, address: str, error: KeyholeError) -> None:
        if isinstance(error, DeadlineExceeded) and self._tried.reason is not None:
            # Another copy, or this one a moment ago, may have said what the silent one couldn't.
            raise self._tried.too_late(self._attempts, error)
        if not isinstance(error, MENDABLE):
            raise error
        self._tried.refused(address, error, was_overdue=address != self._hope)
        if address == self._hope:
            self._hope = ""

    def _too_late(self) -> KeyholeError:
        tried = self._tried
        # One that was asked again a moment ago is not silent: what it said before says more.
        asked_just_now = self._hope if tried.cause is not None and self._loop.time() < self._due else ""
        silent = ", ".join(sorted(tried.under_way - {asked_just_now}))
        if tried.bound is not None or not silent:
            return tried.too_late(self._attempts)
        also = f"; another failed because {tried.cause.message}" if tried.cause else ""
        return DeadlineExceeded(
            f"no answer within the deadline, after {self._attempts} attempts: server {silent} was asked and is silent"
            + also,
            cause=NoServer.reason,
            attempts=self._attempts,
        )

    async def _end_others(self) -> None:
        """Ends the calls that are not needed, or did not answer in time. Idempotent."""
        asked, self._asked = self._asked, {}
        for task in asked:
            task.cancel()
        for ended in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(ended, _Begun):
                await ended.others.aclose()
