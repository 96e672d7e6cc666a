"""One client's Lookup stream: frames in, answers out in whatever order they come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping

from keyhole.client.coalescing import Answers
from keyhole.errors import KeyholeError
from keyhole.rpc import status
from keyhole.v1 import query_pb2 as pb

# A client that sends but does not read is not read from either, beyond so many responses.
_MOST_UNSENT = 64

Respond = Callable[[pb.LookupResponse], None]


class LookupSession:
    """Reads and answers at the same time. A frame that takes long holds up no other.

    Args:
        handle: Starts the work on a frame and returns at once; calls what it is given once, with the response.
    """

    def __init__(self, handle: Callable[[pb.LookupRequest, Respond], None]) -> None:
        self._handle = handle
        self._responses: asyncio.Queue[pb.LookupResponse | None] = asyncio.Queue()
        self._taken = asyncio.Event()
        self._under_way = 0
        self._reading = True

    async def run(self, requests: AsyncIterator[pb.LookupRequest]) -> AsyncIterator[pb.LookupResponse]:
        """The responses; ends when the client, or `drain`, has ended the requests and all are answered."""
        reader = asyncio.get_running_loop().create_task(self._read(requests))
        try:
            while (response := await self._responses.get()) is not None:
                yield response
                self._taken.set()
            if reader.done():
                await reader  # raises what broke the requests
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await reader

    def drain(self) -> None:
        """Takes no more frames; those under way are still answered."""
        self._reading = False
        self._end_if_done()

    async def _read(self, requests: AsyncIterator[pb.LookupRequest]) -> None:
        try:
            async for request in requests:
                if not self._reading:
                    break
                self._under_way += 1
                self._handle(request, self._respond)
                while self._responses.qsize() >= _MOST_UNSENT:
                    self._taken.clear()
                    await self._taken.wait()
        finally:
            self._reading = False
            self._end_if_done()

    def _respond(self, response: pb.LookupResponse) -> None:
        self._under_way -= 1
        self._responses.put_nowait(response)
        self._end_if_done()

    def _end_if_done(self) -> None:
        if not self._reading and not self._under_way:
            self._responses.put_nowait(None)


def response(frame: int, answers: Answers) -> pb.LookupResponse:
    """The answers of a frame as a message."""
    return pb.LookupResponse(
        frame=frame,
        values=answers.values,
        sources=answers.sources,
        source_of=answers.source_of,
        failures=_failures(answers.failures) if answers.failures else None,
    )


def refusal(request: pb.LookupRequest, error: KeyholeError) -> pb.LookupResponse:
    """The whole frame can't be answered."""
    count = len(request.storage_keys) or len(request.keys)
    failure = pb.LookupFailure(error=status.to_proto(error))
    return pb.LookupResponse(frame=request.frame, values=[b""] * count, failures=[failure])


def _failures(failures: Mapping[int, KeyholeError]) -> list[pb.LookupFailure]:
    """Keys that failed together share one message."""
    by_error: dict[int, tuple[KeyholeError, list[int]]] = {}
    for index, error in failures.items():
        by_error.setdefault(id(error), (error, []))[1].append(index)
    return [pb.LookupFailure(indexes=indexes, error=status.to_proto(error)) for error, indexes in by_error.values()]
