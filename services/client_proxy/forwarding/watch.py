"""Sends one watch through the proxy: a part of it to each owner of its key groups, and what they answer as one stream.

A part that ends with something that a new owner mends is begun again there, behind what was forwarded of it. The token
that a reader gets is put together of the parts'. Nothing is buffered but a message or two.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from keyhole.backoff import Backoff
from keyhole.client.routing.routes import no_server
from keyhole.errors import (
    Draining,
    KeyholeError,
    NoServer,
    NotOwner,
    NotReady,
    ServerLost,
    StaleDescriptor,
    Unauthenticated,
    UnknownApplication,
    UnknownState,
)
from keyhole.model.epoch import NO_EPOCH, EpochStamp
from keyhole.protocol.routing import RouteTable
from keyhole.rpc.convert_stamps import put_watched_stamp, watched_stamp
from keyhole.rpc.watch_requests import check_watch_heeded, watch_asked
from keyhole.v1 import query_pb2 as pb
from services.client_proxy.directory import Directory
from services.client_proxy.forwarding.forwarded_watch import ForwardedWatch

SILENT_SECONDS = 30.0
"""Servers say something at each progress interval. One that has been silent for so long, and for several of these, is
taken for lost."""

_FIRST_RETRY_SECONDS, _MOST_RETRY_SECONDS = 0.01, 0.25
_QUEUED = 2
_INTERVALS = 5

_MENDABLE = (NotOwner, NotReady, ServerLost, NoServer, Draining, Unauthenticated, UnknownState, UnknownApplication)
"""What another owner, or the same one in a moment, can mend. A state that is gone, the directory doesn't know."""


@dataclass(eq=False)
class _ServerPart:
    """Of the watch, what one server has.

    Attributes:
        begun: It has said something.
        heard_at: When it has done so last, by the event loop's clock; or was asked.
        held_up: What it has said waits for the reader.
        silent: It has said nothing for too long.
        token: As it said last, where that was not taken in yet.
        as_of_ms: As it said last.
        stamp: Of the epoch of which it has sent all, as it said last.
    """

    address: str
    key_groups: frozenset[int]
    task: asyncio.Task[None] | None = None
    begun: bool = False
    heard_at: float = 0.0
    held_up: bool = False
    silent: bool = False
    token: str = ""
    as_of_ms: int = 0
    stamp: EpochStamp = NO_EPOCH


class _Came(NamedTuple):
    """What has come of a part: a response; or an error, behind which nothing comes."""

    part: _ServerPart
    response: pb.WatchResponse | None
    error: KeyholeError | None = None


class FannedWatch:
    """One watch. Event loop.

    Args:
        patience_seconds: For so long it looks for whoever has a key group, before it ends.
        silent_seconds: See SILENT_SECONDS.
    """

    def __init__(
        self,
        directory: Directory,
        request: pb.WatchRequest,
        patience_seconds: float,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self._directory = directory
        self._request = request
        self._name = (request.state.application, request.state.state)
        self._patience = patience_seconds
        self._loop = asyncio.get_running_loop()
        self._asked = watch_asked(directory.codec(self._name), request)
        self._silent_seconds = max(silent_seconds, _INTERVALS * self._asked.progress_seconds)
        self._descriptor = directory.table(self._name).descriptor
        self._parts: set[_ServerPart] = set()
        self._came: asyncio.Queue[_Came | None] = asyncio.Queue(_QUEUED)
        self._forwarded = ForwardedWatch(self._asked, self._descriptor)
        # Those that nobody is asked for, since when, when they are to be placed, and why they are not.
        self._homeless: set[int] = set(self._asked.key_groups)
        self._waiting_since: float | None = self._loop.time()
        self._place_at = 0.0
        self._cause: KeyholeError | None = None
        self._backoff = Backoff(_FIRST_RETRY_SECONDS, _MOST_RETRY_SECONDS)
        self._all_begun = asyncio.Event()
        self._ended, self._changed = False, True

    def drain(self) -> None:
        """It ends soon, so that its reader goes on at another proxy."""
        self._ended = True
        self._wake()

    async def responses(self) -> AsyncGenerator[pb.WatchResponse]:
        """Messages as its reader gets them. Close it.

        Raises:
            UnknownApplication, UnknownState: The state is gone.
            StaleDescriptor: It was made anew.
            NoServer, NotOwner, NotReady, ServerLost: Nobody has its key groups, for as long as it has patience.
            Draining: The proxy ends.
            Unsupported: A server knows of no selection.
            KeyholeError: What a server refuses it with, or ends it with.
        """
        noticing = self._loop.create_task(self._notice(self._directory.next_change()))
        self._listen()
        try:
            while True:
                if self._ended:
                    raise Draining("the client proxy is shutting down; go on at another one, or in a moment")
                if self._changed:
                    self._changed = False
                    self._look()
                self._place()
                came = await self._next()
                if came is not None and not self._ended and (response := self._taken(came)) is not None:
                    yield response
        finally:
            self._listening.cancel()
            await self._end([noticing, *(part.task for part in self._parts if part.task is not None)])

    async def _next(self) -> _Came | None:
        """What has come; None: it is to look, or time has passed. A message costs no task, and no timer where nobody is
        waited for.
        """
        left = self._patience_left()
        if left is None:
            return await self._came.get()
        try:
            async with asyncio.timeout(left):
                return await self._came.get()
        except TimeoutError:
            return None

    async def _notice(self, change: asyncio.Event) -> None:
        while True:
            await change.wait()
            change = self._directory.next_change()
            self._changed = True
            self._wake()

    def _listen(self) -> None:
        """One timer for all parts, as there may be thousands of watches."""
        now = self._loop.time()
        for part in self._parts:
            if not part.held_up and now - part.heard_at > self._silent_seconds:
                part.silent = self._changed = True
        if self._changed:
            self._wake()
        self._listening = self._loop.call_later(self._silent_seconds / 3, self._listen)

    def _wake(self) -> None:
        # Else there is something to get, and behind that it looks.
        if self._came.empty():
            self._came.put_nowait(None)

    def _look(self) -> None:
        """Something is different: what has another owner by now, or has grown silent, is asked for again."""
        table = self._table()
        for part in list(self._parts):
            if part.silent:
                self._leave(part)
                self._place_at = 0.0
                self._cause = ServerLost(
                    f"server {part.address} has said nothing of a watch for {self._silent_seconds:g} s, though its "
                    "connection is there",
                    address=part.address,
                )
                continue
            owners = {table.owners.addresses[group] for group in part.key_groups} - {""}
            if owners - {part.address}:
                self._leave(part)
                self._place_at = 0.0

    def _table(self) -> RouteTable:
        table = self._directory.table(self._name)
        if table.descriptor.topic_id != self._descriptor.topic_id:
            raise StaleDescriptor(
                f"state {'/'.join(self._name)} was made anew, and what was watched is gone; begin the watch without a "
                "token",
                topic_id=table.descriptor.topic_id,
            )
        return table

    def _place(self) -> None:
        now = self._loop.time()
        if not self._homeless or now < self._place_at:
            self._check_patience(now)
            return
        table = self._table()
        by_address: dict[str, set[int]] = {}
        for group in self._homeless:
            by_address.setdefault(table.owners.addresses[group], set()).add(group)
        for address, groups in by_address.items():
            if address and self._directory.link(address) is not None:
                self._ask(address, frozenset(groups))
        if self._homeless:
            self._cause = self._cause or no_server(self._name, table)
            self._place_at = now + self._backoff.next()
            self._check_patience(now)

    def _ask(self, address: str, key_groups: frozenset[int]) -> None:
        request = pb.WatchRequest()
        request.CopyFrom(self._request)
        del request.key_groups[:]
        request.key_groups.extend(sorted(key_groups))
        request.topic_id = self._descriptor.topic_id
        request.token = ""
        if self._forwarded.has_place(key_groups):
            request.no_snapshot = False
            request.token = self._forwarded.token_of(key_groups)
        part = _ServerPart(address, key_groups, as_of_ms=self._forwarded.as_of_ms, heard_at=self._loop.time())
        part.task = self._loop.create_task(self._read(part, request))
        self._parts.add(part)
        self._homeless -= key_groups

    async def _read(self, part: _ServerPart, request: pb.WatchRequest) -> None:
        link = self._directory.link(part.address)
        try:
            if link is None:
                raise NoServer(f"server {part.address} is no longer among the discovered ones")
            async with aclosing(link.watch(request)) as responses:
                async for response in responses:
                    part.held_up = True
                    await self._came.put(_Came(part, response))
                    if not self._all_begun.is_set():
                        # Its changes could have no token before all have begun.
                        await self._all_begun.wait()
                    part.held_up, part.heard_at = False, self._loop.time()
            error: KeyholeError = ServerLost(f"server {part.address} ended a watch; it is probably shutting down")
        except KeyholeError as why:
            error = why
        await self._came.put(_Came(part, None, error))

    def _patience_left(self) -> float | None:
        until = [self._place_at] if self._homeless else []
        if self._waiting_since is not None:
            until.append(self._waiting_since + self._patience)
        return max(0.0, min(until) - self._loop.time()) if until else None

    def _check_patience(self, now: float) -> None:
        if self._waiting_since is not None and now > self._waiting_since + self._patience:
            raise self._cause or NotReady(f"no server has begun its part of a watch of {'/'.join(self._name)} in time")

    def _leave(self, part: _ServerPart) -> None:
        """Nothing is asked of it any more; its key groups are asked of others, behind what it has said."""
        self._settle(part)
        self._parts.discard(part)
        if part.task is not None:
            part.task.cancel()
        self._homeless |= part.key_groups
        if self._waiting_since is None:
            self._waiting_since = self._loop.time()

    def _taken(self, came: _Came) -> pb.WatchResponse | None:
        """What is forwarded of it; None: nothing."""
        part, response, error = came
        if part not in self._parts:
            return None
        if response is None:
            assert error is not None
            if not isinstance(error, _MENDABLE):
                raise error
            self._leave(part)
            self._cause = error
            self._place_at = self._loop.time() + self._backoff.next()
            return None
        check_watch_heeded(self._request, response, "a server")
        part.begun = True
        part.as_of_ms, part.stamp = response.as_of_ms, watched_stamp(response)
        part.token = response.token or part.token
        if self._waiting_since is not None and not self._homeless and all(one.begun for one in self._parts):
            self._waiting_since = self._cause = None
            self._backoff.reset()
            self._all_begun.set()
        if not self._all_begun.is_set():
            # Its reader would take it for a sign of somebody who has all of it. It has no changes: see _read.
            self._settle(part)
            return None
        if len(self._parts) == 1 and not self._homeless:
            return self._passed(part, response)
        self._settle(part)
        return self._joined(response)

    def _passed(self, part: _ServerPart, response: pb.WatchResponse) -> pb.WatchResponse:
        """Of the only part: its token is the whole one."""
        if not self._forwarded.told_done:
            # A server that was asked behind the last row doesn't say it.
            self._settle(part)
        response.snapshot_done = self._forwarded.take_done()
        put_watched_stamp(self._forwarded.complete(part.stamp), response)
        return response

    def _joined(self, response: pb.WatchResponse) -> pb.WatchResponse:
        """Of one of several parts: its token is one of theirs together."""
        if not self._homeless:
            self._forwarded.reach(min(part.as_of_ms for part in self._parts))
        whole = bool(response.token) or not response.changes
        joined = pb.WatchResponse(
            changes=response.changes,
            token=self._forwarded.token() if whole else "",
            snapshot_done=self._forwarded.take_done(),
            as_of_ms=self._forwarded.as_of_ms,
            selected=self._request.HasField("selection"),
        )
        stamp = NO_EPOCH if self._homeless else min((part.stamp for part in self._parts), key=lambda of: of.epoch)
        put_watched_stamp(self._forwarded.complete(stamp), joined)
        return joined

    def _settle(self, part: _ServerPart) -> None:
        if part.token:
            self._forwarded.take(part.token)
            part.token = ""
            if len(self._parts) == 1 and not self._homeless:
                self._forwarded.reach(part.as_of_ms)

    async def _end(self, tasks: Collection[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
