"""Begins key groups of a query's states that are fed by updates: reads where they go on, while others are applied.

One thread asks Kafka, as long as that takes. What it has read counts for key groups that are still owned as they were.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence

from keyhole.changelog.base import Changelog
from keyhole.errors import KeyholeError
from services.state_server.host_settings import HostSettings
from services.state_server.write.fed_begin import Beginning, NewGroups, read_beginning
from services.state_server.write.fed_state import fed_states
from services.state_server.write.host_thread import HostThread
from services.state_server.write.query_states import QueryStates
from services.state_server.write.topics_thread import TopicsThread

_log = logging.getLogger(__name__)

# How long a step waits for it: where it takes longer, the next one looks again.
_WAIT_SECONDS = 1.0
_AGAIN_SECONDS = 1.0


class FeedBeginnings:
    """See the module's text. Event loop, where nothing else is said.

    Attributes:
        failure: Why some could not be begun when it was tried last; None: they were.
    """

    def __init__(
        self, query: str, changelog: Changelog, states: QueryStates, thread: HostThread, settings: HostSettings
    ) -> None:
        self.failure: KeyholeError | None = None
        self._query = query
        self._changelog = changelog
        self._states = states
        self._thread = thread
        self._settings = settings
        self._topics = TopicsThread(changelog, f"keyhole-updates-begin-{query}")
        self._closed = threading.Event()
        self._stop = threading.Event()
        self._reading: asyncio.Future[Sequence[Beginning | KeyholeError]] | None = None
        self._again_at = float("-inf")

    def wanted_until(self, stop: threading.Event) -> None:
        """What is begun from now on is wanted until then; it is tried at once."""
        self._stop, self._again_at, self.failure = stop, float("-inf"), None

    async def begin(self, new: Sequence[NewGroups]) -> bool:
        """Begins these, or those that it was asked for before. Of a state where that fails it is tried again a second
        later, and why is logged once.

        Returns:
            Whether any were begun.
        """
        clock = self._settings.clock
        if self._reading is None:
            if clock.monotonic() < self._again_at:
                return False
            self._reading = asyncio.ensure_future(self._topics.call(self._read, new, self._stop))
        done, _ = await asyncio.wait({self._reading}, timeout=_WAIT_SECONDS)
        if not done:
            return False
        reading, self._reading = self._reading, None
        read = reading.result()
        failure = next((one for one in read if isinstance(one, KeyholeError)), None)
        if failure is not None:
            self._again_at = clock.monotonic() + _AGAIN_SECONDS
            if self.failure is None or self.failure.message != failure.message:
                _log.warning("key groups are not begun", extra={"query": self._query, "why": failure.message})
        self.failure = failure
        begun = [one for one in read if isinstance(one, Beginning)]
        await self._thread.call(self._take, begun)
        return bool(begun)

    def _read(self, new: Sequence[NewGroups], stop: threading.Event) -> Sequence[Beginning | KeyholeError]:
        """Of each state, or why not. On the topics' thread."""

        def stopped() -> bool:
            return stop.is_set() or self._closed.is_set()

        read: list[Beginning | KeyholeError] = []
        for of in new:
            deadline, clock = self._settings.kafka_deadline_seconds, self._settings.clock
            try:
                read.append(read_beginning(self._changelog, self._topics.topics(), of, deadline, stopped, clock))
            except KeyholeError as error:
                read.append(error)
        return read

    def _take(self, read: Sequence[Beginning]) -> None:
        """What was read counts for what is owned as it was. Host thread."""
        for of in fed_states(self._states.hosted):
            for one in read:
                if (one.new.state, one.new.topic_id) == (of.name, of.topic_id):
                    of.groups.begin(one)

    async def lost(self, topic_ids: Mapping[str, str]) -> Sequence[str]:
        """As UpdatesTopics.lost, in the thread that asks."""
        return await self._topics.call(self._lost, topic_ids)

    def _lost(self, topic_ids: Mapping[str, str]) -> Sequence[str]:
        return self._topics.topics().lost(topic_ids, self._settings.kafka_deadline_seconds)

    async def close(self) -> None:
        """Returns once nothing is read any more."""
        self._closed.set()
        if self._reading is not None:
            await asyncio.wait({self._reading})
        await self._topics.close()
