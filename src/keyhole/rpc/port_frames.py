"""What travels on a lookup port: messages, each behind 4 bytes of its length, big-endian. Pure.

    00 00 00 05  0a 03 61 62 63     a message of five bytes

The caller begins with a LookupOpening, which is answered with a LookupResponse of frame 0; LookupRequests and their
LookupResponses follow, as on the stream Query.Lookup (protos/keyhole/v1/query.proto).
"""

from __future__ import annotations

import struct

from google.protobuf.message import Message

from keyhole.errors import TooLarge
from keyhole.rpc.frames import FRAME_BYTES

VERSION = 1
"""Of what is said here; a LookupOpening names it."""

OPENING_BYTES = 16 << 10
"""The most of a LookupOpening: as much as gRPC's port takes of a call's headers."""

REQUEST_BYTES = 2 * FRAME_BYTES
"""The most of a LookupRequest: its keys have at most FRAME_BYTES, and there is as much room around them."""

_SIZE = struct.Struct(">I")


def packed(message: bytes) -> bytes:
    """The message with its length before it."""
    return _SIZE.pack(len(message)) + message


def packed_message(message: Message) -> bytes:
    """The same of a message that is no bytes yet."""
    return packed(message.SerializeToString())


class Incoming:
    """Bytes as they come, and the messages in them. One thread's.

    Args:
        most: Of a message's bytes. May be changed at any time.
    """

    __slots__ = ("_at", "_data", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self._data: bytes | bytearray = b""
        self._at = 0

    @property
    def held(self) -> int:
        """How many bytes wait for the rest of their message, or to be taken."""
        return len(self._data) - self._at

    def add(self, data: bytes) -> None:
        """Takes what has come next, in pieces of any size."""
        if not self.held:
            self._data, self._at = data, 0
            return
        if self._at or not isinstance(self._data, bytearray):
            # Once per message that comes in pieces; each further piece is only appended.
            self._data, self._at = bytearray(memoryview(self._data)[self._at :]), 0
        self._data += data

    def next(self) -> bytes | None:
        """The next whole message; None: it isn't here yet.

        Raises:
            TooLarge: Its length is above `most`. Nothing that comes behind it can be read.
        """
        begin = self._at + _SIZE.size
        if begin > len(self._data):
            return None
        (size,) = _SIZE.unpack_from(self._data, self._at)
        if size > self.most:
            raise TooLarge(
                f"a message of {size:,} bytes is announced, and {self.most:,} is the most that is taken here: ask for "
                "fewer keys at once, or check that this is the port that is meant",
                bytes=size,
                limit=self.most,
            )
        if begin + size > len(self._data):
            return None
        message = bytes(memoryview(self._data)[begin : begin + size])
        self._at = begin + size
        if not self.held:
            # An idle connection would keep what its last message came in: of megabytes, and for as long as it is open.
            self._data, self._at = b"", 0
        return message
