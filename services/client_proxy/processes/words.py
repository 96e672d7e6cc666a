"""What a parent and its children say to each other, as keyhole.rpc.processes.word_framing has it.

    parent                    child
      Begin        ─────────►            once, first
                   ◄─────────  Started   its ports answer; or Failed, and it ends
      Ask          ─────────►
                   ◄─────────  FactsOfOne its facts
                   ◄─────────  AskAll
      FactsOfAll   ─────────►            the facts of all

Facts are bytes here: children alone know what is in them.
"""

from __future__ import annotations

import msgspec


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


class FactsOfAll(msgspec.Struct, frozen=True, tag=True):
    """The facts of all children, of the one that has begun first at first."""

    question: int
    facts: tuple[bytes, ...]


class Started(msgspec.Struct, frozen=True, tag=True):
    """The child listens on all of its ports."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It ends because of this error."""

    reason: str
    message: str


class FactsOfOne(msgspec.Struct, frozen=True, tag=True):
    """The answer to an Ask with the same number."""

    question: int
    facts: bytes


class AskAll(msgspec.Struct, frozen=True, tag=True):
    """What are the facts of all of us?"""

    question: int


ToChild = Begin | Ask | FactsOfAll
ToParent = Started | Failed | FactsOfOne | AskAll
