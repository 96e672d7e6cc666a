"""The key groups that were moved to a server (`keyhole move`), as long as its process lives. For one thread."""

from __future__ import annotations

from typing import NamedTuple

from keyhole.errors import TooLarge
from keyhole.v1 import query_pb2

MOST_PLACED = 262_144
"""Of all states together. They are in every answer to a coordinator's question, of which none may become large."""


class _Placed(NamedTuple):
    query: str
    key_groups: frozenset[int]


class Placements:
    """See the module's text.

    Attributes:
        messages: All of them, in order.
    """

    def __init__(self) -> None:
        self._placed: dict[tuple[str, str], _Placed] = {}
        self.messages: tuple[query_pb2.Placement, ...] = ()

    def of(self, application: str, state: str) -> frozenset[int]:
        """The key groups of a state."""
        placed = self._placed.get((application, state))
        return frozenset() if placed is None else placed.key_groups

    def put(self, application: str, query: str, state: str, key_groups: frozenset[int]) -> None:
        """From now on it is these of the state. Raises TooLarge: with those of other states they would be too many."""
        others = sum(len(of.key_groups) for name, of in self._placed.items() if name != (application, state))
        if others + len(key_groups) > MOST_PLACED:
            raise TooLarge(
                f"{others + len(key_groups)} key groups would be placed on one server, which takes {MOST_PLACED} at "
                "most: undo some, or move them to another one"
            )
        self._placed.pop((application, state), None)
        if key_groups:
            self._placed[application, state] = _Placed(query, key_groups)
        self._changed()

    def forget(self, application: str, query: str) -> None:
        """A query is over, or all of the application. `query`: empty: all of them."""
        gone = [name for name, of in self._placed.items() if name[0] == application and query in ("", of.query)]
        for name in gone:
            del self._placed[name]
        self._changed()

    def _changed(self) -> None:
        self.messages = tuple(
            query_pb2.Placement(application=application, state=state, key_groups=sorted(of.key_groups))
            for (application, state), of in sorted(self._placed.items())
        )
