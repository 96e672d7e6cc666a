"""How many states, queries and topics have series of their own in one process's metrics: never more than this. Pure."""

from __future__ import annotations

from collections.abc import Iterable

MOST_STATES = 100
"""So many states have series of their own in one process; the figures of all others are put together, as OTHER."""

MOST_STATES_OF_ALL = 500
"""The same for the exporter, over all processes."""

MOST_QUERIES = 50
"""So many queries have series of their own in one process."""

MOST_QUERIES_OF_ALL = MOST_STATES_OF_ALL
"""The same for the exporter, over all processes."""

MOST_INDEXES = 10
"""So many indexes of a state have series of their own."""

MOST_TOPICS = 200
"""The same for the sources' topics; where a metric has the query, too, each is counted with it."""

OTHER = "other"
"""The label of what is put together."""

RANGES = 8
"""A state's key groups are counted in so many ranges."""


class Kept:
    """Which states, or queries, have series of their own: the first ones that came, for as long as the process lives.

    Otherwise a counter would move between a name and OTHER. Not thread-safe.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: set[tuple[str, str]] = set()

    def note(self, names: Iterable[tuple[str, str]]) -> None:
        """(application, state) or (application, query), in the order in which they are to be kept."""
        for name in names:
            if len(self._kept) >= self._most:
                return
            self._kept.add(name)

    def label(self, name: tuple[str, str]) -> tuple[str, str]:
        """The labels by which this name is exposed: itself, or OTHER beyond the limit."""
        return name if name in self._kept else (OTHER, OTHER)
