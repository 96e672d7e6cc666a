"""The client for asyncio. Start here: `async with AsyncClient("host:7400") as client: await client.get(...)`."""

# ruff: noqa: ASYNC109 - a timeout is part of the request: it travels to the server, which then stops working on it

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from keyhole.client.bounds import StalePolicy, bounds_of
from keyhole.client.lookup_stream import LookupStream
from keyhole.client.lookups import Batch, Whole
from keyhole.client.scans import MapKey, Scan, Scanner
from keyhole.client.session import AsyncSession
from keyhole.client.state_reads import StateReads
from keyhole.client.views import ServerStatus, status_from_proto
from keyhole.errors import ClientClosed, InternalError, KeyholeError
from keyhole.rpc import channels, convert, status
from keyhole.security.credentials import PLAIN, Credentials
from keyhole.types import Answer, Entries, Stale, StateDescriptor
from keyhole.v1 import query_pb2, query_pb2_grpc

_log = logging.getLogger(__name__)

Key = convert.KeyValue | Sequence[convert.KeyValue]
"""One value, or a tuple of one per key column; to look an entry of a map state up, then one per map key column."""

_Response = TypeVar("_Response")
_Options = tuple[str, str, StalePolicy, timedelta | None, int, float | None]


class AsyncClient:
    """Reads states through a client proxy (or from one state server, which answers only for its own key groups).

    All lookups that are under way share one stream, so many `get`s at once are cheap: start them together
    (`asyncio.gather`) rather than one after the other. Retries are the proxy's job: it follows the owners until the
    deadline. The client itself sends again only where the state has changed since it was described, with the newer
    descriptor.

    Make it inside the running event loop and use it from that loop's thread; keyhole.Client is for threads.

    Args:
        target: host:port.
        timeout: Seconds that a call may take where it names no timeout of its own.
        credentials: TLS, a certificate, a token; default: plaintext, and none.

    Raises:
        InvalidConfiguration: The credentials contradict each other, or a file of theirs can't be used.
    """

    def __init__(self, target: str, *, timeout: float = 5.0, credentials: Credentials = PLAIN) -> None:
        self._target = target
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._channel = channels.aio_channel(target, credentials)
        # The generated stubs are typed for both APIs at once.
        self._stub: Any = query_pb2_grpc.QueryStub(self._channel)
        self._stream = LookupStream(self._channel, target)
        self._states: dict[tuple[str, str], StateReads] = {}
        # What was asked for in this turn of the event loop, by state and options.
        self._turn: dict[_Options, Batch] = {}
        self._closed: KeyholeError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def get(
        self,
        application: str,
        state: str,
        key: Key,
        *,
        stale: StalePolicy = Stale.WHEN_NEEDED,
        max_staleness: timedelta | None = None,
        min_epoch: int = 0,
        timeout: float | None = None,
    ) -> asyncio.Future[Answer]:
        """The value of one key, as of the last committed epoch; an absent key is an answer with `found` False.

        Not a coroutine: the lookup is under way once this returns, and the future is yours to await or gather.

        Args:
            stale: Whether a copy other than the owner's may answer: "never", "when_needed" (the owner does not answer),
                "always".
            max_staleness: The answer must hold all that was complete so long ago; None: any age.
            min_epoch: The answer must hold this epoch or a later one.
            timeout: Seconds.

        Raises (through the future):
            UnknownApplication, UnknownState: The message names those that exist.
            KeyMismatch, NullKey, KeyTooLong: The key does not fit the state.
            EpochNotReached, TooStale: No copy met `min_epoch` or `max_staleness` within the timeout.
            Unconfirmed: Nothing stale is wanted, and the owner has not heard of its coordinator for a while.
            Unauthenticated, PermissionDenied: The credentials are not valid, or not enough.
            NoServer, ServerLost, NotOwner, NotReady, Draining, Overloaded: Not now; see `retryable`.
            DeadlineExceeded: The message names what it waited for.
            ClientClosed: The client was closed.

        Raises (at once):
            MalformedRequest: A policy or a bound that there is not.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        batch = self._batch(application, state, stale, max_staleness, min_epoch, timeout)
        batch.keys.append(key)
        batch.waiters.append(future)
        return future

    async def get_many(
        self,
        application: str,
        state: str,
        keys: Iterable[Key],
        *,
        stale: StalePolicy = Stale.WHEN_NEEDED,
        max_staleness: timedelta | None = None,
        min_epoch: int = 0,
        timeout: float | None = None,
    ) -> list[Answer]:
        """The values of many keys, in their order. They may be of different epochs where servers are: see each source.

        Raises:
            KeyholeError: As `get`. One key that can't be answered fails the call.
        """
        wanted = list(keys)
        if not wanted:
            return []
        future: asyncio.Future[list[Answer]] = self._loop.create_future()
        batch = self._batch(application, state, stale, max_staleness, min_epoch, timeout)
        batch.keys += wanted
        batch.waiters += Whole(future, len(wanted)).slots()
        return await future

    async def scan(
        self,
        application: str,
        state: str,
        key: Key,
        *,
        start: MapKey | None = None,
        stop: MapKey | None = None,
        descending: bool = False,
        limit: int | None = None,
        stale: StalePolicy = Stale.WHEN_NEEDED,
        max_staleness: timedelta | None = None,
        min_epoch: int = 0,
        timeout: float | None = None,
    ) -> Entries:
        """The entries of one key of a map state, ordered by map key; of a list state, its elements. All of one epoch.

        Args:
            key: Without the map key; of a broadcast state, which is scanned whole, the empty tuple.
            start, stop: From which map key on (inclusive), and up to which (exclusive). Of several columns, the first
                ones will do.
            descending: From the last one on.
            limit: The most entries; None: all.
            stale, max_staleness, min_epoch, timeout: As for `get`.

        Raises:
            Unsupported: The state has no map keys.
            MalformedRequest: A limit below 1.
            KeyholeError: As `get`.
        """
        bounds = bounds_of(stale, max_staleness, min_epoch)
        scan = Scan(application, state, key, start, stop, bounds, descending=descending, limit=limit)
        deadline = self._loop.time() + (self._timeout if timeout is None else timeout)

        def reads() -> StateReads:
            return self._states.get((application, state)) or self._reads(application, state)

        if self._closed is not None:
            raise self._closed
        try:
            return await Scanner(self._stub, self._target).entries(scan, reads, deadline)
        except (asyncio.CancelledError, grpc.aio.UsageError):
            self._raise_if_closed()
            raise

    def session(self, epochs: Mapping[tuple[str, str], int] | None = None) -> AsyncSession:
        """Reads that never go backwards. `epochs`: those of an earlier session, to go on from."""
        return AsyncSession(self, epochs or {})

    async def list_states(self, application: str = "", *, timeout: float | None = None) -> list[StateDescriptor]:
        """All states of an application; of all applications if empty."""
        request = query_pb2.ListStatesRequest(application=application)
        response: query_pb2.ListStatesResponse = await self._call(self._stub.ListStates, request, timeout)
        return [convert.descriptor_from_proto(message) for message in response.states]

    async def describe_state(self, application: str, state: str, *, timeout: float | None = None) -> StateDescriptor:
        """Key, schema, key groups of a state.

        Raises:
            UnknownApplication, UnknownState: The message names those that exist.
        """
        request = query_pb2.DescribeStateRequest(state=query_pb2.StateRef(application=application, state=state))
        response: query_pb2.DescribeStateResponse = await self._call(self._stub.DescribeState, request, timeout)
        return convert.descriptor_from_proto(response.descriptor)

    async def status(self, *, timeout: float | None = None) -> list[ServerStatus]:
        """All servers that the target knows, with what they hold; those it can't reach with the reason."""
        response: query_pb2.StatusResponse = await self._call(self._stub.Status, query_pb2.StatusRequest(), timeout)
        return [status_from_proto(message) for message in response.servers]

    async def close(self) -> None:
        """Closes the connection. What is under way fails with ClientClosed. Idempotent."""
        if self._closed is not None:
            return
        self._closed = ClientClosed(f"the client of {self._target} is closed; make a new one", address=self._target)
        self._flush()
        for reads in self._states.values():
            reads.close(self._closed)
        await self._stream.close(self._closed)
        await self._channel.close()

    def _batch(
        self,
        application: str,
        state: str,
        stale: StalePolicy,
        max_staleness: timedelta | None,
        min_epoch: int,
        timeout: float | None,
    ) -> Batch:
        options = (application, state, stale, max_staleness, min_epoch, timeout)
        batch = self._turn.get(options)
        if batch is None:
            bounds = bounds_of(stale, max_staleness, min_epoch)
            if not self._turn:
                self._loop.call_soon(self._flush)
            deadline = self._loop.time() + (self._timeout if timeout is None else timeout)
            batch = self._turn[options] = Batch(bounds, deadline)
        return batch

    def _flush(self) -> None:
        """Once per turn of the event loop in which something was asked for."""
        turn, self._turn = self._turn, {}
        for (application, state, *_), batch in turn.items():
            if self._closed is not None:
                batch.fail(self._closed)
                continue
            reads = self._states.get((application, state))
            if reads is None:
                reads = self._reads(application, state)
            try:
                reads.submit(batch)
            except Exception:  # noqa: BLE001 - the top of a loop: nobody else would tell those who wait
                _log.exception("lookups could not be started")
                batch.fail(InternalError("the lookup could not be started, by a bug; the client's log has the cause"))

    def _reads(self, application: str, state: str) -> StateReads:
        name = (application, state)

        async def describe(application: str, state: str, timeout: float) -> StateDescriptor:
            return await self.describe_state(application, state, timeout=timeout)

        def forget() -> None:
            self._states.pop(name, None)

        reads = self._states[name] = StateReads(self._stream, application, state, describe, forget)
        return reads

    async def _call(
        self, method: Callable[..., Awaitable[_Response]], request: object, timeout: float | None
    ) -> _Response:
        if self._closed is not None:
            raise self._closed
        try:
            return await method(request, timeout=self._timeout if timeout is None else timeout)
        except grpc.RpcError as error:
            raise status.from_rpc_error(error, self._target) from error
        except asyncio.CancelledError:
            self._raise_if_closed()
            raise

    def _raise_if_closed(self) -> None:
        """Closing the channel cancels its calls, and refuses others; the caller's own cancellation goes through."""
        task = asyncio.current_task()
        if self._closed is not None and (task is None or not task.cancelling()):
            raise self._closed from None
