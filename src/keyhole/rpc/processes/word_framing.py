"""Words between a parent and its children: MessagePack behind 4 bytes of its length."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec

_LENGTH = 4

_Word = TypeVar("_Word")


def framed(word: msgspec.Struct) -> bytes:
    """A word as it travels."""
    content = msgspec.msgpack.encode(word)
    return len(content).to_bytes(_LENGTH, "big") + content


def send(writer: asyncio.StreamWriter, word: bytes) -> None:
    """Sends a word as it travels, some time later. Where the other end is gone nobody hears it."""
    # Some event loops raise where others drop what is written then.
    if not writer.transport.is_closing():
        writer.write(word)


async def read_word(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[_Word]) -> _Word | None:
    """The next one; None: the other end is gone."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH), "big")
        return decoder.decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
