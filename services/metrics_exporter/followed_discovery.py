"""A discovery that is followed for as long as the exporter runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from keyhole.discovery import Discovery
from keyhole.errors import KeyholeError


class FollowedDiscovery:
    """Follows a discovery in a task of its own. Event loop's thread only.

    Args:
        hear: Is given the whole set of addresses, at once and after every change.
    """

    def __init__(self, discovery: Discovery, hear: Callable[[frozenset[str]], Awaitable[None]]) -> None:
        self._discovery = discovery
        self._hear = hear
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to follow it; call it once."""
        self._task = asyncio.get_running_loop().create_task(self._follow())

    @property
    def task(self) -> asyncio.Task[None]:
        """Ends only with the error of a discovery that is refused its answer; known after `start`."""
        assert self._task is not None
        return self._task

    async def stop(self) -> None:
        """Follows it no more, whatever it says."""
        if self._task is not None:
            self._task.cancel()
            # What a discovery was refused is for who runs the exporter, not for who ends it.
            with contextlib.suppress(asyncio.CancelledError, KeyholeError):
                await self._task

    async def _follow(self) -> None:
        async for addresses in self._discovery.addresses():
            await self._hear(addresses)
