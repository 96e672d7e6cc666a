"""What all readers share: where they read, whom they tell, when they end. And how those of one state fail."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from keyhole import AsyncClient
from tests.fault.history import Asked, FailedRead

TIMEOUT_SECONDS = 5.0
"""For so long nobody may be there who answers."""


@dataclass(frozen=True)
class Shared:
    """What the readers of an episode have in common.

    Attributes:
        note: Is told of what was read, and of what has failed.
        closed: Set: they end.
        pause_seconds: Each waits up to so long between two reads.
    """

    application: str
    seed: int
    note: Callable[[Any], None]
    closed: threading.Event
    pause_seconds: float

    def draw(self, *reader: str) -> random.Random:
        """What a reader draws by, in each episode of this seed."""
        return random.Random(" ".join((str(self.seed), *reader)))

    async def pause(self, draw: random.Random, times: float = 1.0) -> None:
        """Up to `pause_seconds`, or so many times as long."""
        await asyncio.sleep(draw.uniform(0.0, times * self.pause_seconds))


class ReaderOfOne:
    """Of one state. On the event loop of its client.

    Args:
        kind: Its name; each draws by it, and by the seed and the state.
    """

    def __init__(self, kind: str, client: AsyncClient, state: str, shared: Shared) -> None:
        self._client = client
        self._state = state
        self._shared = shared
        self._draw = shared.draw(kind, state)

    def _failed(self, reader: str, began: float, reason: str, error: BaseException) -> None:
        """Notes it. `began`: on the monotonic clock."""
        ended = time.monotonic()
        self._shared.note(FailedRead(reader, began, ended, self._state, Asked(0), reason, str(error)[:200]))

    async def _pause(self, times: float = 1.0) -> None:
        await self._shared.pause(self._draw, times)
