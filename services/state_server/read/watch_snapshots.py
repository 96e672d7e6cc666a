"""The snapshots from which watches read rows: how many are held at once, and for how long each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager

from keyhole.model.epoch import Position
from keyhole.stores.base import Snapshot
from services.state_server.read.held_snapshot import HeldSnapshot
from services.state_server.read.read_turns import ReadTurns
from services.state_server.read.watch_rows import StoredOrNot


class WatchSnapshot:
    """One that a watch holds. Event loop.

    Attributes:
        closed: Its time is over: it must not be read any more.
    """

    def __init__(self, held: HeldSnapshot, free: Callable[[], None]) -> None:
        self.closed = False
        self._held = held
        self._free = free
        self._reading: Generator[StoredOrNot] | None = None

    @property
    def positions(self) -> Mapping[int, Position]:
        """How far each key group of it is in the changelog."""
        return self._held.positions

    @property
    def stored(self) -> Snapshot:
        """What the watch reads from: as far as it is committed."""
        return self._held.stored

    def reading(self, entries: Generator[StoredOrNot]) -> Generator[StoredOrNot]:
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
        turns: Of all who look at many entries of the server.

    Attributes:
        turns: The same.
    """

    def __init__(self, most: int, seconds: float, turns: ReadTurns | None = None) -> None:
        self.turns = turns or ReadTurns()
        self._turn = asyncio.Semaphore(most)
        self._seconds = seconds

    @asynccontextmanager
    async def queued(self) -> AsyncIterator[Queued]:
        """A place in the queue of those who want a snapshot. At the end of the block it is given up, and so is the
        snapshot.
        """
        queued = Queued(self._turn, self._seconds)
        try:
            yield queued
        finally:
            await queued.leave()


class Queued:
    """One that wants a snapshot. Event loop."""

    def __init__(self, turn: asyncio.Semaphore, seconds: float) -> None:
        self._turn = turn
        self._seconds = seconds
        # Keeps its place while others only look.
        self._waiting: asyncio.Task[bool] | None = None
        self._has_turn = False
        self._held: WatchSnapshot | None = None
        self._late: asyncio.TimerHandle | None = None

    async def has_turn(self, seconds: float) -> bool:
        """Whether its turn has come, at most so many seconds from now."""
        if not self._has_turn:
            if self._waiting is None and not self._turn.locked():
                await self._turn.acquire()
                self._has_turn = True
                return True
            self._waiting = self._waiting or asyncio.ensure_future(self._turn.acquire())
            await asyncio.wait({self._waiting}, timeout=max(0.0, seconds))
            self._has_turn = self._waiting.done()
        return self._has_turn

    def held(self, hold: Callable[[], HeldSnapshot]) -> WatchSnapshot:
        """A snapshot, once it has its turn, closed when its time is over. Raises as `hold`."""
        self._held = WatchSnapshot(hold(), self._free)
        self._late = asyncio.get_running_loop().call_later(self._seconds, self._held.close)
        return self._held

    def _free(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._turn.release()

    async def leave(self) -> None:
        """Gives up its place, its turn and its snapshot."""
        if self._late is not None:
            self._late.cancel()
        if self._held is not None:
            self._held.close()
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.wait({self._waiting})
            # Its turn may have come, though nobody has asked.
            self._has_turn |= not self._waiting.cancelled() and self._held is None
        self._free()
