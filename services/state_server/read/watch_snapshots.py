"""The snapshots from which watches read rows: how many are held at once, and for how long each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager

from keyhole.model.epoch import Position
from keyhole.stores.base import Snapshot
from services.state_server.read.held_snapshot import HeldSnapshot


class WatchSnapshot:
    """One that a watch holds. Event loop.

    Attributes:
        closed: Its time is over: it must not be read any more.
    """

    def __init__(self, held: HeldSnapshot, free: Callable[[], None]) -> None:
        self.closed = False
        self._held = held
        self._free = free
        self._reading: Generator[tuple[bytes, bytes]] | None = None

    @property
    def positions(self) -> Mapping[int, Position]:
        """How far each key group of it is in the changelog."""
        return self._held.positions

    @property
    def stored(self) -> Snapshot:
        """What the watch reads from: as far as it is committed."""
        return self._held.stored

    def reading(self, entries: Generator[tuple[bytes, bytes]]) -> Generator[tuple[bytes, bytes]]:
        """These entries of it, which end where it is closed."""
        self._reading = entries
        return entries

    def close(self) -> None:
        """Lets go of it. Idempotent."""
        if not self.closed:
            self.closed = True
            if self._reading is not None:
                self._reading.close()
            self._held.release()
            self._free()


class WatchSnapshots:
    """Those of all watches of a server. Event loop.

    Args:
        most: At a time: whoever wants one more waits for its turn. Each may keep old pages of a store alive.
        seconds: After which one is closed, whether its watch is read or not.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._turn = asyncio.Semaphore(most)
        self._seconds = seconds

    @asynccontextmanager
    async def held(self, hold: Callable[[], HeldSnapshot]) -> AsyncIterator[WatchSnapshot]:
        """A snapshot, closed at the end of the block, or before, once its time is over. Raises as `hold`."""
        await self._turn.acquire()
        try:
            held = WatchSnapshot(hold(), self._turn.release)
        except BaseException:
            self._turn.release()
            raise
        late = asyncio.get_running_loop().call_later(self._seconds, held.close)
        try:
            yield held
        finally:
            late.cancel()
            held.close()
