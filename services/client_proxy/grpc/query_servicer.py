"""The service Query of a proxy: every key goes to its server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc

from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.segments import Answers
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.key_values import KeyValue
from keyhole.errors import InternalError, KeyholeError, Overloaded, StaleDescriptor
from keyhole.protocol.views import StateName
from keyhole.rpc import convert
from keyhole.rpc.frames import (
    FRAME_BYTES,
    FULL,
    MAX_VALUE_BYTES,
    answer_too_large,
    check_answer,
    cut_to_frame,
    of_key,
)
from keyhole.rpc.read_requests import check_consistency, check_frame, check_lookup, key_count
from keyhole.security.authentication import current
from keyhole.security.policy import Verb
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc
from services.client_proxy.counts import ProxyCounts
from services.client_proxy.directory import Directory
from services.client_proxy.forwarding.frame import Forwarding
from services.client_proxy.forwarding.scan import Scanning
from services.client_proxy.grpc.lookup_session import LookupSession, Respond, refusal, response

_log = logging.getLogger(__name__)

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

# Of the caller's time, what is kept back so that the reason can still reach it.
_KEPT_BACK = 0.1
_MOST_KEPT_BACK_SECONDS = 0.25
_RETRY_SECONDS = 0.02


class QueryServicer(query_pb2_grpc.QueryServicer):
    """See protos/keyhole/v1/query.proto.

    Args:
        default_timeout_seconds: For requests that bring no deadline.
        max_keys: Beyond so many keys under way, requests are refused as overloaded.
        max_scans: The same for scans.
    """

    def __init__(
        self, directory: Directory, default_timeout_seconds: float, max_keys: int = 262_144, max_scans: int = 256
    ) -> None:
        self._directory = directory
        self._default_timeout = default_timeout_seconds
        self._max_keys = max_keys
        self._max_scans = max_scans
        self._keys = 0
        self._scans = 0
        self.counts = ProxyCounts(directory.clock)
        self._sessions: set[LookupSession] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def under_way(self) -> tuple[int, int, int]:
        """Keys, scans and Lookup streams."""
        return self._keys, self._scans, len(self._sessions)

    def drain(self) -> None:
        """Ends the Lookup streams, which clients keep open for ever, after the frames that are under way."""
        for session in self._sessions:
            session.drain()

    async def ListStates(self, request: pb.ListStatesRequest, context: _Context) -> pb.ListStatesResponse:  # noqa: N802
        """All states of all servers."""
        await self._settled(self._deadline(context))
        if not self._directory.tables:
            self._directory.check_reachable()
        return pb.ListStatesResponse(
            states=[
                convert.descriptor_to_proto(table.descriptor)
                for (application, _), table in sorted(self._directory.tables.items())
                if request.application in ("", application)
            ]
        )

    async def DescribeState(self, request: pb.DescribeStateRequest, context: _Context) -> pb.DescribeStateResponse:  # noqa: N802
        """A state, and what each server that can be reached said of it last."""
        name = _name(request.state)
        await self._known(name, self._deadline(context))
        descriptor = self._directory.table(name).descriptor
        holdings = [
            holding
            for link in self._directory.links
            if link.view is not None and not link.view.lost
            for holding in link.holdings
            if (holding.descriptor.application, holding.descriptor.state) == name
        ]
        return pb.DescribeStateResponse(descriptor=convert.descriptor_to_proto(descriptor), holdings=holdings)

    async def Get(self, request: pb.GetRequest, context: _Context) -> pb.GetResponse:  # noqa: N802
        """One key."""
        many = pb.GetManyRequest(state=request.state, keys=[request.key], options=request.options)
        (answer,) = await self.read_many(many, context)
        return pb.GetResponse(answer=answer)

    async def GetMany(self, request: pb.GetManyRequest, context: _Context) -> pb.GetManyResponse:  # noqa: N802
        """Many keys, of any servers."""
        return pb.GetManyResponse(answers=await self.read_many(request, context))

    async def Lookup(  # noqa: N802
        self, requests: AsyncIterator[pb.LookupRequest], context: _Context
    ) -> AsyncIterator[pb.LookupResponse]:
        """Frames. One that can't be answered fails alone; the stream goes on."""
        session = LookupSession(self._handle)
        self._sessions.add(session)
        try:
            async for message in session.run(requests):
                yield message
        finally:
            self._sessions.discard(session)

    async def Scan(self, request: pb.ScanRequest, context: _Context) -> AsyncIterator[pb.ScanResponse]:  # noqa: N802
        """The entries of one key, from one copy of it."""
        began = self._directory.clock.monotonic()
        name = _name(request.state)
        try:
            async with aclosing(self._scan(request, context)) as pages:
                async for page in pages:
                    self.counts.of(name, self._directory.tables).entries += len(page.values)
                    yield page
        except KeyholeError as error:
            self.counts.failed(self.counts.of(name, self._directory.tables), [error])
            raise
        finally:
            self.counts.of(name, self._directory.tables).scans += 1
            self.counts.scan_seconds.observe(self._directory.clock.monotonic() - began)

    async def _scan(self, request: pb.ScanRequest, context: _Context) -> AsyncGenerator[pb.ScanResponse]:
        check_consistency(request.options)
        if self._scans >= self._max_scans:
            raise Overloaded(f"{self._scans} scans are under way in this proxy, and no more may be; try again")
        self._scans += 1
        try:
            deadline = self._deadline(context)
            await self._known(_name(request.state), deadline)
            async with aclosing(Scanning(self._directory, request, deadline).pages()) as pages:
                async for page in pages:
                    yield page
        finally:
            self._scans -= 1

    async def Status(self, request: pb.StatusRequest, context: _Context) -> pb.StatusResponse:  # noqa: N802
        """All servers, asked at the same time; those that can't be reached say why."""
        patience = min(2.0, max(0.0, self._deadline(context) - self._loop.time()))
        return pb.StatusResponse(
            servers=await asyncio.gather(*(link.describe(patience) for link in self._directory.links))
        )

    def _handle(self, request: pb.LookupRequest, respond: Respond) -> None:
        try:
            self._start(request, respond)
        except Exception as error:  # noqa: BLE001 - the top of every frame: the stream must go on
            respond(self._refusal(request, _told(error)))

    def _refusal(self, request: pb.LookupRequest, error: KeyholeError) -> pb.LookupResponse:
        count = key_count(request)
        self.counts.of(_name(request.state), self._directory.tables).failed[error.reason] += count
        return refusal(request, error)

    def _start(self, request: pb.LookupRequest, respond: Respond) -> None:
        options = request.options
        current().check(Verb.READ, request.state.application, request.state.state)
        check_frame(request)
        if not request.keys and not request.storage_keys:
            respond(pb.LookupResponse(frame=request.frame))
            return
        deadline = self._before_deadline(request.timeout_ms / 1000 if request.timeout_ms else self._default_timeout)
        if request.keys or options.format == pb.VALUE_FORMAT_JSON:
            # The slow way, for callers without a codec.
            task = self._loop.create_task(self._lookup(request, deadline, respond))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        keys = list(request.storage_keys)
        frame = request.frame

        def done(answers: Answers) -> None:
            self._keys -= len(keys)
            respond(response(frame, answers), sum(map(len, answers.values)))

        self._forward(_name(request.state), request.topic_id, keys, options, deadline, done, in_parts=True)

    async def _lookup(self, request: pb.LookupRequest, deadline: float, respond: Respond) -> None:
        try:
            name = _name(request.state)
            if request.keys:
                answers = await self._forward_typed(name, request.keys, request.options, deadline)
            else:
                keys = list(request.storage_keys)
                answers = await self._forwarded(name, request.topic_id, keys, request.options, deadline)
            formatted = await self._formatted(name, answers, request.options, deadline)
            values = list(formatted.values)
            failures = {**formatted.failures, **cut_to_frame("/".join(name), values)}
            message = response(request.frame, formatted._replace(values=values, failures=failures))
        except Exception as error:  # noqa: BLE001 - the top of a task: nobody else would answer the frame
            respond(self._refusal(request, _told(error)))
        else:
            respond(message, sum(map(len, values)))

    async def read_many(
        self, request: pb.GetManyRequest, context: _Context, most_bytes: int = MAX_VALUE_BYTES
    ) -> list[pb.Answer]:
        """The answers to many keys.

        Args:
            most_bytes: The values of all keys together may take.

        Raises:
            TooLarge: One of them, or all together, take more.
            KeyholeError: A key can't be answered.
        """
        name, keys, options = _name(request.state), request.keys, request.options
        deadline, state = self._deadline(context), "/".join(name)
        try:
            answers = await self._forward_typed(name, keys, options, deadline, most_bytes)
        except KeyholeError as error:
            self.counts.of(name, self._directory.tables).failed[error.reason] += len(keys)
            raise
        for index, failure in answers.failures.items():
            if FULL in failure.facts:
                raise answer_too_large(state, len(keys), most_bytes)
            raise of_key(failure, index, len(keys))
        values = (await self._formatted(name, answers, options, deadline)).values
        check_answer(state, values, len(keys), most_bytes)
        source_of = answers.source_of or [0] * len(values)
        return [
            pb.Answer(found=bool(value), value=value, source=answers.sources[index])
            for value, index in zip(values, source_of, strict=True)
        ]

    async def _forward_typed(
        self,
        name: StateName,
        keys: Sequence[pb.Key],
        options: pb.ReadOptions,
        deadline: float,
        room: int = FRAME_BYTES,
    ) -> Answers:
        """Encodes the keys, again if the state was made anew meanwhile."""
        if not keys:
            return Answers((), ())
        values = [convert.key_from_proto(key) for key in keys]
        await self._known(name, deadline)
        answers = await self._encode_and_forward(name, values, options, deadline, room)
        if any(isinstance(error, StaleDescriptor) for error in answers.failures.values()):
            answers = await self._encode_and_forward(name, values, options, deadline, room)
        return answers

    async def _encode_and_forward(
        self,
        name: StateName,
        keys: Sequence[tuple[KeyValue, ...]],
        options: pb.ReadOptions,
        deadline: float,
        room: int,
    ) -> Answers:
        codec = self._directory.codec(name)
        encoded = [codec.storage_key(key if len(key) != 1 else key[0]) for key in keys]
        topic_id = self._directory.table(name).descriptor.topic_id
        return await self._forwarded(name, topic_id, encoded, options, deadline, room)

    async def _forwarded(
        self,
        name: StateName,
        topic_id: str,
        keys: Sequence[bytes],
        options: pb.ReadOptions,
        deadline: float,
        room: int = FRAME_BYTES,
    ) -> Answers:
        answered: asyncio.Future[Answers] = self._loop.create_future()

        def done(answers: Answers) -> None:
            self._keys -= len(keys)
            if not answered.done():
                answered.set_result(answers)

        self._forward(name, topic_id, keys, options, deadline, done, room=room)
        return await answered

    def _forward(
        self,
        name: StateName,
        topic_id: str,
        keys: Sequence[bytes],
        options: pb.ReadOptions,
        deadline: float,
        done: Callable[[Answers], None],
        *,
        in_parts: bool = False,
        room: int = FRAME_BYTES,
    ) -> None:
        check_lookup(options, len(keys))
        if self._keys + len(keys) > self._max_keys:
            raise Overloaded(
                f"{self._keys:,} lookups are under way in this proxy, and at most {self._max_keys:,} may be; try "
                "again, or run another proxy"
            )
        lane = Lane(*name, topic_id, convert.bounds_from_proto(options))
        self._keys += len(keys)
        counts = self.counts.of(name, self._directory.tables)
        began = self.counts.begun(counts, len(keys))

        def ended(answers: Answers) -> None:
            self.counts.ended(counts, began, answers, forwarding.missed)
            done(answers)

        forwarding = Forwarding(self._directory, lane, keys, deadline, ended, in_parts=in_parts, room=room)
        forwarding.start()

    async def _formatted(self, name: StateName, answers: Answers, options: pb.ReadOptions, deadline: float) -> Answers:
        if options.format != pb.VALUE_FORMAT_JSON:
            return answers
        while True:
            codec = self._directory.codec(name)
            try:
                values = [codec.row_to_json(row).encode() if row else b"" for row in answers.values]
            except StaleDescriptor:
                # A row has come before the word of its schema, which is under way.
                if self._loop.time() + _RETRY_SECONDS >= deadline:
                    raise
                await self._directory.clock.pause(_RETRY_SECONDS)
            else:
                return answers._replace(values=values)

    async def codec(self, name: StateName, context: _Context) -> StateCodec:
        """Of a state that is, or becomes, known within the caller's time. Raises UnknownApplication, UnknownState."""
        await self._known(name, self._deadline(context))
        return self._directory.codec(name)

    async def _known(self, name: StateName, deadline: float) -> None:
        """Waits only where the state is not known and a server has not been tried yet."""
        if name not in self._directory.tables:
            await self._settled(deadline)

    async def _settled(self, deadline: float) -> None:
        if not self._directory.settled.is_set():
            try:
                async with asyncio.timeout_at(deadline):
                    await self._directory.settled.wait()
            except TimeoutError:
                return  # What is not known by now is refused, with the servers that are still being connected to.

    def _deadline(self, context: _Context) -> float:
        remaining: float | None = context.time_remaining()
        return self._before_deadline(self._default_timeout if remaining is None else remaining)

    def _before_deadline(self, timeout: float) -> float:
        return self._loop.time() + timeout - min(_MOST_KEPT_BACK_SECONDS, _KEPT_BACK * timeout)


def _told(error: Exception) -> KeyholeError:
    if isinstance(error, KeyholeError):
        return error
    _log.error("a frame failed unexpectedly", exc_info=error)
    return InternalError("the frame failed unexpectedly; the proxy's log has the cause")


def _name(state: pb.StateRef) -> StateName:
    return state.application, state.state
