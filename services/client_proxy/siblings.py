"""What the processes of one proxy know of each other, so that whichever of them is asked answers for the whole.

A proxy of one process has no others: `Alone`. What connects several is `processes/parent_link.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import msgspec

from services.client_proxy.route_events import RouteEvent


class RefusedReads(msgspec.Struct, frozen=True, array_like=True):
    """Keys and scans that were refused for one reason. `last_ms`: when, milliseconds since 1970."""

    reason: str
    count: int
    last_ms: int


class HotKey(msgspec.Struct, frozen=True, array_like=True):
    """A key that is read often. `reads`: about how many of those of the last minutes were of it, at least."""

    storage_key: bytes
    reads: float


class CountedReads(msgspec.Struct, frozen=True, array_like=True):
    """The reads of one state through one process, since that began.

    Attributes:
        application, state: Empty: of states that no server holds, all together.
        failed: Keys and scans.
        refused: The same by reason.
        sampled: About how many keys were read lately.
        hottest: Those of them that were read most, the hottest first.
    """

    application: str
    state: str
    keys: int
    scans: int
    entries: int
    failed: int
    refused: tuple[RefusedReads, ...] = ()
    sampled: float = 0.0
    hottest: tuple[HotKey, ...] = ()


class ProcessFacts(msgspec.Struct, frozen=True, array_like=True):
    """What one process tells the others.

    Attributes:
        figures: Its ReadStatsResponse, as bytes; empty: it has no others.
        reads: What is known of each state that was read.
        events: Its RouteEvents, from the oldest.
        turned_away: Calls and keys that were refused at the entrance, by labels.REFUSALS and labels.READ_LIMITS.
    """

    figures: bytes
    reads: tuple[CountedReads, ...]
    events: tuple[RouteEvent, ...]
    turned_away: dict[str, int] = msgspec.field(default_factory=dict)


TellFacts = Callable[[], Awaitable[ProcessFacts]]
"""What this process tells. On the event loop."""


class Siblings(Protocol):
    """The processes of the proxy, as one of them sees them. Event loop's thread only.

    Attributes:
        count: How many there are when all are there.
        number: Which of them this is, from 0.
    """

    count: int
    number: int

    def told_by(self, tell: TellFacts) -> None:
        """Says how this process's own facts are made. Called before anybody asks."""

    async def facts(self) -> list[ProcessFacts]:
        """Of all processes, its own included, as of about now: the one that has begun first comes first."""

    def sql_turn(self) -> AbstractContextManager[bool]:
        """Whether a query may run in this process now: in one of them at a time."""


class Alone:
    """The only process of a proxy: it has every turn. See Siblings."""

    count = 1
    number = 0

    def __init__(self) -> None:
        self._tell: TellFacts | None = None

    def told_by(self, tell: TellFacts) -> None:
        self._tell = tell

    async def facts(self) -> list[ProcessFacts]:
        assert self._tell is not None
        return [await self._tell()]

    @contextmanager
    def sql_turn(self) -> Iterator[bool]:
        yield True
