"""Builds the indexes of open states, and removes those that are gone, beside what is written and read. Event loop."""

from __future__ import annotations

import asyncio
import logging

from keyhole.clock import Clock
from keyhole.errors import KeyholeError, NotReady
from services.state_server.replica.hosted import StateReplica
from services.state_server.write.host_thread import HostThread

_log = logging.getLogger(__name__)

# Between two steps, each of some tens of milliseconds, commits and restores have the thread.
_PAUSE_SECONDS = 0.02
_AGAIN_SECONDS = 60.0


class IndexBuilding:
    """Of one query. What it does is done in steps, each on the host's thread."""

    def __init__(self, thread: HostThread, clock: Clock) -> None:
        self._thread = thread
        self._clock = clock
        self._building: dict[str, asyncio.Task[None]] = {}

    def look(self, state: StateReplica) -> None:
        """The state was opened, or has another descriptor: there may be something to do."""
        self.forget(state.descriptor.state)
        if state.indexes is not None and state.indexes.has_entries:
            self._building[state.descriptor.state] = asyncio.create_task(self._build(state))

    def forget(self, state: str) -> None:
        """The state's store is being closed. A step that was begun ends before that, on the thread."""
        if (task := self._building.pop(state, None)) is not None:
            task.cancel()

    async def _build(self, state: StateReplica) -> None:
        more, pause = True, 0.0
        while more:
            await self._clock.pause(pause)
            try:
                more, pause = await self._thread.call(state.build_indexes), _PAUSE_SECONDS
            except NotReady:  # the store was closed, or is about to be
                return
            except KeyholeError as error:
                _log.warning(
                    "an index can't be built; scans read all rows meanwhile, and it is tried again",
                    extra={"state": state.table.name, "why": error.message, "seconds": _AGAIN_SECONDS},
                )
                pause = _AGAIN_SECONDS
            except Exception:  # noqa: BLE001 - the top of a loop: nobody waits for what it raises
                _log.exception("an index can't be built, by a bug of Keyhole's", extra={"state": state.table.name})
                return

    def close(self) -> None:
        """Nothing more is begun. Idempotent."""
        for state in list(self._building):
            self.forget(state)
