"""By which sources topics have fed a state, as its updates topic has it: an earlier release has not recorded them.

    [0, "J4x1.web", 17, {"0": 991900}]    a boundary, or an update, of a real-time query that reads the topic J4x1

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from keyhole.errors import StateConflict
from keyhole.feed.fed_topics import UpdatesTopic
from keyhole.feed.updates_search import search_back
from keyhole.protocol.fed_sources import admitted, lane_of, topic_id_of


class _Boundary(msgspec.Struct, frozen=True, array_like=True, tag=0):
    source: str


class _Update(msgspec.Struct, frozen=True, array_like=True, tag=1):
    source: str


class SourceSearch:
    """Looks for all sources of some topics, window by window, until it has boundaries of the wanted, and a window more.

    Boundaries of all sources of a query are written together: where those stand that are wanted, others of these topics
    are beside them, or there are none. A query that was killed in its first batch has left updates alone.

    Attributes:
        found: Sources of these topics, the last one first.
    """

    def __init__(self, wanted: Collection[str]) -> None:
        self._missing = set(wanted)
        self._topics = {topic_id_of(source) for source in wanted}
        self._passed: set[str] = set()
        self._decoder = msgspec.json.Decoder(_Boundary | _Update)
        self.found: list[str] = []

    def look(self, values: Iterable[bytes | None]) -> bool:
        """Whether nothing ahead of this window need be looked at."""
        found = not self._missing
        for value in values:
            try:
                record = self._decoder.decode(value or b"")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # neither of the two
                continue
            if isinstance(record, _Boundary):
                self._missing.discard(record.source)
            if record.source not in self._passed:
                self._passed.add(record.source)
                if topic_id_of(record.source) in self._topics:
                    self.found.append(record.source)
        return found


def check_earlier(updates: UpdatesTopic, state: str, sources: Mapping[str, str]) -> bool:
    """Refuses topics that have fed a state under another name, of which nothing is on record.

    Args:
        updates: Of the state. One partition is read: of a topic that is new to the state, all of it.
        sources: Those of a run whose topics are not on record, each with the name of its topic.

    Returns:
        Whether it is known what of these topics has fed the state: False where the log has lost its first records, and
        says nothing of one.

    Raises:
        StateConflict: See keyhole.protocol.fed_sources.admitted. Or a topic has fed it under a name that the run lacks:
            that would be recorded nowhere, and another one might be taken for it later.
        KeyholeError: Kafka can't be reached, or refuses.
    """
    search = SourceSearch(sources)
    whole = search_back(updates, search.look)
    admitted(state, search.found, sources)
    if other := next((source for source in search.found if source not in sources), None):
        topic = next(name for source, name in sources.items() if topic_id_of(source) == topic_id_of(other))
        raise StateConflict(
            f"topic {topic} has fed state {state!r} {lane_of(other)} too, by an earlier release, which has not "
            "recorded it: start it once as it was fed then, from then on that may go. Where no start feeds it by both, "
            "as by keyhole feed and a real-time query, feed another state, or drop this one",
            state=state,
            topic=topic,
        )
    return whole or set(map(topic_id_of, search.found)) >= set(map(topic_id_of, sources))
