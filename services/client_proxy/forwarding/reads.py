"""What a read of one key or of many is: typed keys become storage keys, and rows what was asked for, JSON too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.segments import Answers
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.key_values import KeyValue
from keyhole.errors import KeyholeError, Overloaded, StaleDescriptor
from keyhole.protocol.server_view import StateName
from keyhole.rpc import convert
from keyhole.rpc.frames import FRAME_BYTES, AskAgain, answer_too_large, check_answer, cut_to_frame, of_key
from keyhole.rpc.read_requests import check_lookup
from keyhole.v1 import query_pb2 as pb
from services.client_proxy.counts import ProxyCounts
from services.client_proxy.directory import Directory
from services.client_proxy.forwarding.frame import Forwarding

_RETRY_SECONDS = 0.02


class ProxyReads:
    """The lookups of all callers, however they came. Event loop's thread only; deadlines are on its clock.

    Args:
        max_keys: Beyond so many keys under way, reads are refused as overloaded.

    Attributes:
        keys: How many are under way.
    """

    def __init__(self, directory: Directory, counts: ProxyCounts, max_keys: int) -> None:
        self.keys = 0
        self._directory = directory
        self._counts = counts
        self._max_keys = max_keys
        self._loop = asyncio.get_running_loop()

    def forward(
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
        """Looks storage keys up; `done`, `in_parts` and `room` are as of Forwarding.

        Raises:
            MalformedRequest, Unsupported: The request is wrong.
            Overloaded: Too many keys are under way already.
        """
        check_lookup(options, len(keys))
        if self.keys + len(keys) > self._max_keys:
            raise Overloaded(
                f"{self.keys:,} lookups are under way in this proxy, and at most {self._max_keys:,} may be; try "
                "again, or run another proxy"
            )
        lane = Lane(*name, topic_id, convert.bounds_from_proto(options))
        self.keys += len(keys)
        counts = self._counts.of(name, self._directory.tables)
        began = self._counts.begun(counts, len(keys))

        def ended(answers: Answers) -> None:
            self._counts.ended(counts, began, answers, forwarding.missed)
            self.keys -= len(keys)
            done(answers)

        forwarding = Forwarding(self._directory, lane, keys, deadline, ended, in_parts=in_parts, room=room)
        forwarding.start()

    async def frame(self, request: pb.LookupRequest, deadline: float) -> Answers:
        """The slow way to look a frame up, for callers without a codec: typed keys, or values as JSON.

        Returns:
            As many values as one response carries; the others stand as AskAgain.

        Raises:
            KeyholeError: The frame can't be looked up.
        """
        name = request.state.application, request.state.state
        if request.keys:
            answers = await self._typed(name, request.keys, request.options, deadline)
        else:
            keys = list(request.storage_keys)
            answers = await self._stored(name, request.topic_id, keys, request.options, deadline)
        formatted = await self._formatted(name, answers, request.options, deadline)
        values = list(formatted.values)
        failures = {**formatted.failures, **cut_to_frame("/".join(name), values)}
        return formatted._replace(values=values, failures=failures)

    async def many(self, request: pb.GetManyRequest, deadline: float, most_bytes: int) -> list[pb.Answer]:
        """The answers to typed keys.

        Args:
            most_bytes: The values of all keys together may take.

        Raises:
            TooLarge: One of them, or all together, take more.
            KeyholeError: A key can't be answered.
        """
        name, keys, options = (request.state.application, request.state.state), request.keys, request.options
        state = "/".join(name)
        try:
            answers = await self._typed(name, keys, options, deadline, most_bytes)
        except KeyholeError as error:
            self._counts.of(name, self._directory.tables).failed[error.reason] += len(keys)
            raise
        for index, failure in answers.failures.items():
            if isinstance(failure, AskAgain):  # there is no room for it; these are never answered in parts
                raise answer_too_large(state, len(keys), most_bytes)
            raise of_key(failure, index, len(keys))
        values = (await self._formatted(name, answers, options, deadline)).values
        check_answer(state, values, len(keys), most_bytes)
        source_of = answers.source_of or [0] * len(values)
        return [
            pb.Answer(found=bool(value), value=value, source=answers.sources[index])
            for value, index in zip(values, source_of, strict=True)
        ]

    async def codec(self, name: StateName, deadline: float) -> StateCodec:
        """The codec of a state that is, or becomes, known in time. Raises UnknownApplication, UnknownState,
        NoServer.
        """
        await self.known(name, deadline)
        return self._directory.codec(name)

    async def known(self, name: StateName, deadline: float) -> None:
        """Waits only where the state is not known and a server has not been tried yet."""
        if name not in self._directory.tables:
            await self.settled(deadline)

    async def settled(self, deadline: float) -> None:
        """Waits until every server was tried once."""
        if not self._directory.settled.is_set():
            try:
                async with asyncio.timeout_at(deadline):
                    await self._directory.settled.wait()
            except TimeoutError:
                return  # What is not known by now is refused, with the servers that are still being connected to.

    async def _typed(
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
        await self.known(name, deadline)
        answers = await self._encoded(name, values, options, deadline, room)
        if any(isinstance(error, StaleDescriptor) for error in answers.failures.values()):
            answers = await self._encoded(name, values, options, deadline, room)
        return answers

    async def _encoded(
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
        return await self._stored(name, topic_id, encoded, options, deadline, room)

    async def _stored(
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
            if not answered.done():
                answered.set_result(answers)

        self.forward(name, topic_id, keys, options, deadline, done, room=room)
        return await answered

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
