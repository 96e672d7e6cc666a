"""Memory for updates that are applied and not committed: so much of a whole server, shared by its states.

    half of it     in equal shares: each state may fill its own, whatever others hold
    the other      whoever comes: a state that holds more than its share holds a part of this

A state that finds no room is not read until it has committed. Its share is its own, so no other one that can't commit
keeps it waiting. One that holds nothing is always read: something of it comes through, however small the room is.

Shares are less where states come. What those that were there hold beyond their new share stays until they commit: where
they can't, all together may hold half as much again as the limit.
"""

from __future__ import annotations

import threading

ROW_BYTES = 512
"""What a row takes beside its key and its value, about."""


class FedRoom:
    """See the module's text. Any thread.

    What was read before a state finds no room is held beyond the limit: of each query what one poll takes.

    Attributes:
        limit_bytes: May be changed at any time.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._held: dict[object, int] = {}

    def may_read(self, state: object, bytes_: int) -> bool:
        """Whether more may be read of a state.

        Args:
            state: Which has a share from now on, until it leaves.
            bytes_: What it holds now.
        """
        with self._lock:
            self._held[state] = bytes_
            share = self.limit_bytes // 2 // len(self._held)
            if bytes_ <= share:
                return True
            beyond = sum(held - share for held in self._held.values() if held > share)
            return beyond < self.limit_bytes - share * len(self._held)

    def leave(self, state: object) -> None:
        """It holds nothing, and has no share any more. Idempotent."""
        with self._lock:
            self._held.pop(state, None)

    @property
    def held_bytes(self) -> int:
        """What all states hold, as they said last."""
        with self._lock:
            return sum(self._held.values())
