"""A reader's side of the pair of sockets to its server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
from collections.abc import AsyncIterator
from typing import NoReturn

import msgspec

from keyhole.errors import InternalError, Overloaded
from keyhole.rpc.processes.word_framing import framed, read_word, send
from keyhole.v1 import query_pb2
from services.state_server.readers.reader_words import Answered, BeginReader, PassedOn, ToReader, ToServer

_log = logging.getLogger(__name__)

_MOST_WAITING_BYTES = 64 << 20
"""Of frames that are passed on, until the server has read them: it is overloaded then."""

_AGAIN_SECONDS = 0.05

_READ = msgspec.msgpack.Decoder[ToReader](ToReader)


class ReaderLink:
    """See the module's text. Event loop's thread only. `open` makes one.

    This process ends at once where the server is gone: what it has read is nobody's any more.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begin: BeginReader) -> None:
        self.begin = begin
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._passed_on: dict[int, asyncio.Future[query_pb2.LookupResponse]] = {}

    @staticmethod
    async def open(pair: int) -> ReaderLink:
        """Over the descriptor of a socket: waits for the server's first word."""
        os.set_inheritable(pair, False)
        reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=pair))
        begin = await read_word(reader, _READ)
        if not isinstance(begin, BeginReader):
            _orphaned()
        return ReaderLink(reader, writer, begin)

    def say(self, word: ToServer) -> None:
        """Tells the server something, some time later."""
        send(self._writer, framed(word))

    def pass_on(
        self, request: query_pb2.LookupRequest, until: float | None
    ) -> asyncio.Future[query_pb2.LookupResponse]:
        """The server's answer to a frame.

        Args:
            until: As in PassedOn.

        Raises:
            Overloaded: Too much waits for the server.
        """
        if self._writer.transport.get_write_buffer_size() > _MOST_WAITING_BYTES:
            raise Overloaded(
                "the server has not read what was passed on to it; try again later", retry_after_seconds=_AGAIN_SECONDS
            )
        # How late it has come by its caller's clock is in `until`: the server would see all callers as one.
        request.sent_ms = 0
        number = next(self._numbers)
        answer = self._passed_on[number] = asyncio.get_running_loop().create_future()
        self.say(PassedOn(number, request.SerializeToString(), until))
        return answer

    async def words(self) -> AsyncIterator[ToReader]:
        """What the server says, but for its answers, which go to whoever has passed on a frame."""
        while (word := await read_word(self._reader, _READ)) is not None:
            if isinstance(word, Answered):
                answer = self._passed_on.pop(word.number)
                if answer.done():
                    continue
                if word.response:
                    answer.set_result(query_pb2.LookupResponse.FromString(word.response))
                else:
                    answer.set_exception(InternalError("a frame failed unexpectedly; the server's log has the cause"))
            else:
                yield word
        _orphaned()

    async def close(self) -> None:
        """The server has heard all that was said."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


def _orphaned() -> NoReturn:
    _log.error("the reader's server is gone, so this process ends")
    os._exit(1)
