"""What readers of one state share: where they read, whom they tell, and how they fail."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from keyhole import AsyncClient
from tests.fault.history import Asked, FailedRead

TIMEOUT_SECONDS = 5.0
"""For so long nobody may be there who answers."""


class ReaderOfOne:
    """Of one state. On the event loop of its client.

    Args:
        kind: Its name; each draws by it, and by the seed and the state.
        note: Is told of what was read, and of what has failed.
        closed: When it ends.
        pause_seconds: See `_pause`.
    """

    def __init__(
        self,
        kind: str,
        client: AsyncClient,
        application: str,
        state: str,
        seed: int,
        note: Callable[[Any], None],
        closed: threading.Event,
        pause_seconds: float,
    ) -> None:
        self._client = client
        self._application, self._state = application, state
        self._draw = random.Random(f"{seed} {kind} {state}")
        self._note = note
        self._closed = closed
        self._pause_seconds = pause_seconds

    def _failed(self, reader: str, began: float, reason: str, error: BaseException) -> None:
        """Notes it. `began`: on the monotonic clock."""
        ended = time.monotonic()
        self._note(FailedRead(reader, began, ended, self._state, Asked(0), reason, str(error)[:200]))

    async def _pause(self, times: float = 1.0) -> None:
        """Up to `pause_seconds`, or so many times as long."""
        await asyncio.sleep(self._draw.uniform(0.0, times * self._pause_seconds))
