"""What all callers of one port have not read of their answers, and who of them is cut off beyond a limit. Pure.

Each caller may have as much unread as its connection takes; thousands of them, who read nothing, would take gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

C = TypeVar("C")


class Unsent(Generic[C]):
    """Used by one thread.

    Args:
        most: Bytes of all together. Beyond it, who has taken nothing for longest is cut off, and so on.
        size: How many bytes of a connection are unread now.
        cut: Ends a connection at once.

    Attributes:
        bytes: Of all together, at most: what was read since is not known before it is asked for.
    """

    def __init__(self, most: int, size: Callable[[C], int], cut: Callable[[C], None]) -> None:
        self.bytes = 0
        self._most = most
        self._size = size
        self._cut = cut
        # Those who have something unread. The first has taken nothing for longest.
        self._of: dict[C, int] = {}

    def note(self, connection: C, unread: int) -> None:
        """It has so many bytes unread now. Called before something is written to it, and after."""
        self._set(connection, unread)
        if self.bytes > self._most:
            self._make_room()

    def _set(self, connection: C, unread: int) -> None:
        before = self._of.get(connection, 0)
        if unread < before:
            del self._of[connection]
        if unread:
            self._of[connection] = unread  # at the end, where it has taken something
        self.bytes += unread - before

    def _make_room(self) -> None:
        for connection, before in list(self._of.items()):
            if (now := self._size(connection)) < before:
                self._set(connection, now)
        if self.bytes <= self._most:
            return
        # Some more than is needed: to look at all of them for each answer would cost too much.
        while self._of and self.bytes > self._most - self._most // 8:
            connection = next(iter(self._of))
            self._set(connection, 0)
            self._cut(connection)
