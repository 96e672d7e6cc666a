"""What a parent and its children say to each other: MessagePack behind 4 bytes of its length.

    parent                    child
      Begin        ─────────►            once, first
                   ◄─────────  Started   its ports answer; or Failed, and it ends
      Ask          ─────────►
                   ◄─────────  ToldFacts its facts
                   ◄─────────  AskAll
      ToldAll      ─────────►            the facts of all

Facts are bytes here: children alone know what is in them.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec

_LENGTH = 4


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Which child it is, of how many, and where they listen; `http` and `metrics` are host:port, or empty."""

    number: int
    count: int
    port: int
    http: str
    metrics: str


class Ask(msgspec.Struct, frozen=True, tag=True):
    """What are your facts? A child that answers nothing for too long is ended."""

    question: int


class ToldAll(msgspec.Struct, frozen=True, tag=True):
    """The facts of all children, of the one that has begun first at first."""

    question: int
    facts: tuple[bytes, ...]


class Started(msgspec.Struct, frozen=True, tag=True):
    """The child listens on all of its ports."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It ends because of this error."""

    reason: str
    message: str


class ToldFacts(msgspec.Struct, frozen=True, tag=True):
    """The answer to an Ask with the same number."""

    question: int
    facts: bytes


class AskAll(msgspec.Struct, frozen=True, tag=True):
    """What are the facts of all of us?"""

    question: int


ToChild = Begin | Ask | ToldAll
ToParent = Started | Failed | ToldFacts | AskAll

_Word = TypeVar("_Word")


def framed(word: ToChild | ToParent) -> bytes:
    """A word as it travels."""
    content = msgspec.msgpack.encode(word)
    return len(content).to_bytes(_LENGTH, "big") + content


async def read_word(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[_Word]) -> _Word | None:
    """The next one; None: the other end is gone."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH), "big")
        return decoder.decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
