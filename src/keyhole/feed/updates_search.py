"""A look back through the updates of a state. Boundaries stand in every partition, so one partition is read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from keyhole.feed.fed_topics import UpdatesTopic
from keyhole.feed.positions import BoundarySearch, FoundBoundaries, windows

_SEARCHED_PARTITION = 0


def search_back(updates: UpdatesTopic, look: Callable[[Iterable[bytes | None]], bool]) -> bool:
    """Shows records window by window, from the end backwards, until there are no more or none is wanted.

    Args:
        look: Takes the values of a window, and returns whether nothing ahead of it need be looked at.

    Returns:
        Whether the log still has its first record: what was looked for and not found was never there.

    Raises:
        KeyholeError: Kafka can't be reached, or refuses.
    """
    start, end = updates.bounds(_SEARCHED_PARTITION)
    for first, behind in windows(start, end):
        if look(updates.read(_SEARCHED_PARTITION, first, behind)):
            break
    return start == 0


def last_boundary(updates: UpdatesTopic, topic: str, source: str) -> FoundBoundaries:
    """The last boundary of a source of rows, and what else is known of it.

    Args:
        topic: Whose records these rows are.

    Raises:
        KeyholeError: As search_back.
    """
    search = BoundarySearch(topic, source, updates.topic_id)
    whole = search_back(updates, search.look)
    return search.found(whole=whole)
