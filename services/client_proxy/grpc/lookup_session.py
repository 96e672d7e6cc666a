"""One client's Lookup stream: frames in, answers out in whatever order they come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Protocol

from keyhole.client.wire.segments import Answers
from keyhole.errors import Draining, KeyholeError, Overloaded
from keyhole.rpc import status
from keyhole.rpc.frames import failures_to_proto
from keyhole.rpc.read_requests import refused_count
from keyhole.v1 import query_pb2 as pb

# A client that sends but does not read is not read from either, beyond so many responses, or bytes of values in them.
_MOST_UNSENT = 64
_MOST_UNSENT_BYTES = 8 << 20
# What is under way by then is answered all the same, but for values beyond so many bytes.
_MOST_HELD_BYTES = 64 << 20


class Respond(Protocol):
    """Takes the response to a frame, whose values have so many bytes."""

    def __call__(self, response: pb.LookupResponse, value_bytes: int = 0, /) -> None: ...


class LookupSession:
    """Reads and answers at the same time. A frame that takes long holds up no other.

    Args:
        handle: Starts the work on a frame and returns at once; calls what it is given once, with the response.
    """

    def __init__(self, handle: Callable[[pb.LookupRequest, Respond], None]) -> None:
        self._handle = handle
        self._responses: asyncio.Queue[tuple[pb.LookupResponse, int] | None] = asyncio.Queue()
        self._unsent_bytes = 0
        self._taken = asyncio.Event()
        self._under_way = 0
        self._reading, self._draining = True, False

    async def run(self, requests: AsyncIterator[pb.LookupRequest]) -> AsyncGenerator[pb.LookupResponse]:
        """Yields the responses; ends when the client, or `drain`, has ended the requests and all are answered. Once it
        is closed, no frame is handled.
        """
        reader = asyncio.get_running_loop().create_task(self._read(requests))
        try:
            while (unsent := await self._responses.get()) is not None:
                response, value_bytes = unsent
                yield response
                self._unsent_bytes -= value_bytes
                self._taken.set()
            if reader.done():
                await reader  # raises what broke the requests
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await reader

    def drain(self) -> None:
        """Those under way are still answered. Frames that come until they are all have a refusal: whoever sent them
        asks somebody else, and waits for none that is under way.
        """
        self._draining = True
        self._end_if_done()

    async def _read(self, requests: AsyncIterator[pb.LookupRequest]) -> None:
        try:
            async for request in requests:
                self._under_way += 1
                if self._draining:
                    self._respond(refusal(request, Draining("the client proxy is shutting down; ask another one")))
                else:
                    self._handle(request, self._respond)
                while self._responses.qsize() >= _MOST_UNSENT or self._unsent_bytes >= _MOST_UNSENT_BYTES:
                    self._taken.clear()
                    await self._taken.wait()
        finally:
            self._reading = False
            self._end_if_done()

    def _respond(self, response: pb.LookupResponse, value_bytes: int = 0, /) -> None:
        self._under_way -= 1
        if self._unsent_bytes and self._unsent_bytes + value_bytes > _MOST_HELD_BYTES:
            response, value_bytes = _unread(response, self._unsent_bytes), 0
        self._unsent_bytes += value_bytes
        self._responses.put_nowait((response, value_bytes))
        self._end_if_done()

    def _end_if_done(self) -> None:
        if (self._draining or not self._reading) and not self._under_way:
            self._responses.put_nowait(None)


def answering(frame: int, respond: Respond) -> Callable[[Answers], None]:
    """Returns the function that takes the answers of a frame, once, and responds with them."""

    def answer(answers: Answers) -> None:
        message = answers.message
        if message is not None:
            # Of one server, which has answered the whole frame: the answer is passed on as it came.
            message.frame = frame
        else:
            message = pb.LookupResponse(
                frame=frame,
                values=answers.values,
                sources=answers.sources,
                source_of=answers.source_of,
                failures=failures_to_proto(answers.failures) if answers.failures else None,
            )
        respond(message, sum(map(len, answers.values)))

    return answer


def refusal(request: pb.LookupRequest, error: KeyholeError) -> pb.LookupResponse:
    """Makes the response to a frame of which no key can be answered."""
    return _refused(request.frame, refused_count(request), error)


def _unread(instead_of: pb.LookupResponse, unsent_bytes: int) -> pb.LookupResponse:
    error = Overloaded(
        f"responses of this stream with {unsent_bytes:,} bytes of values have not been read; read them before you send "
        "more frames"
    )
    return _refused(instead_of.frame, len(instead_of.values), error)


def _refused(frame: int, keys: int, error: KeyholeError) -> pb.LookupResponse:
    failure = pb.LookupFailure(error=status.to_proto(error))
    return pb.LookupResponse(frame=frame, values=[b""] * keys, failures=[failure])
