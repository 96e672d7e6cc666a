"""Where the updates partitions of states end, asked each second; and as of when whoever reads one has all of it.

    asked at 12:00:00   the updates partition ends at 70
    asked at 12:00:01   it ends at 90
    the copy is at 75   it has all that there was at 12:00:00

So a copy knows its age whether anything comes or not, and whether its coordinator lives or not. Where Kafka can't be
reached nobody hears of an end, and it grows old.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from keyhole.changelog.base import Changelog, Partition, UpdatesTopics
from keyhole.clock import Clock
from keyhole.errors import KeyholeError

_log = logging.getLogger(__name__)

_ASK_SECONDS = 1.0
_JOIN_SECONDS = 3.0
# Of a key group that is far behind, every second one is forgotten beyond so many.
_MOST_ENDS = 64


class FollowedUpdates(NamedTuple):
    """The updates topic of a state, by Kafka's id, and the key groups of it that are read."""

    topic_id: str
    key_groups: frozenset[int]


class LogEnd(NamedTuple):
    """Where a partition ended, and when that was asked, by either clock."""

    offset: int
    ms: int
    monotonic: float


class LogEnds:
    """Of one partition: as of when a copy at some place has all that there was. One thread at a time."""

    def __init__(self) -> None:
        # Ascending: ends that were not reached yet; and the last one that was.
        self._ahead: list[LogEnd] = []
        self._reached: LogEnd | None = None

    def __len__(self) -> int:
        """Counts those that were not reached."""
        return len(self._ahead)

    def add(self, end: LogEnd) -> None:
        """It was asked once more."""
        # Also ends above it, which were lost: a copy would wait for them for ever.
        while self._ahead and self._ahead[-1].offset >= end.offset:
            self._ahead.pop()
        if len(self._ahead) >= _MOST_ENDS:
            del self._ahead[1::2]
        self._ahead.append(end)

    def reached(self, place: int) -> LogEnd | None:
        """The last end that a copy has come to which is at this place; None: none is known."""
        while self._ahead and self._ahead[0].offset <= place:
            self._reached = self._ahead.pop(0)
        if self._reached is None or self._reached.offset > place:  # it was dropped since, and begins anew
            return None
        return self._reached


class EndsAsking:
    """See the module's text. Event loop; a thread of its own asks, from the first state on that is wanted.

    Args:
        name: Of the query.
        heard: Is called on the event loop with what was heard of partitions that are wanted; of none, where Kafka did
            not say.
        by_itself: Else whoever tests it calls `ask`.
    """

    def __init__(
        self,
        changelog: Changelog,
        name: str,
        clock: Clock,
        deadline_seconds: float,
        heard: Callable[[Mapping[Partition, LogEnd]], None],
        *,
        by_itself: bool,
    ) -> None:
        self._changelog = changelog
        self._name = name
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._heard = heard
        self._by_itself = by_itself
        self._loop = asyncio.get_running_loop()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        # Replaced as a whole: the thread reads it.
        self._wanted: Mapping[str, FollowedUpdates] = {}

    def want(self, wanted: Mapping[str, FollowedUpdates]) -> None:
        """By state, of what it is asked from now on."""
        self._wanted = {name: of for name, of in wanted.items() if of.key_groups}
        if self._wanted and self._by_itself and self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._run, name=f"keyhole-ends-{self._name}", daemon=True)
            self._thread.start()

    def wants(self, part: Partition, topic_id: str) -> bool:
        """Whether it asks of this partition, of the updates topic with that id."""
        of = self._wanted.get(part.state)
        return of is not None and of.topic_id == topic_id and part.key_group in of.key_groups

    def ask(self, topics: UpdatesTopics) -> None:
        """Asks once, and has what it hears taken in on the event loop. Blocks; any thread but the loop's.

        Raises:
            KeyholeError: Of a state nothing is heard; of the others it is.
        """
        failed: KeyholeError | None = None
        ends: dict[Partition, LogEnd] = {}
        asked = self._wanted
        for name, of in asked.items():
            ms, monotonic = self._clock.now_ms(), self._clock.monotonic()
            try:
                extents = topics.extents({name: sorted(of.key_groups)}, self._deadline_seconds)
                # After the extents: so they are of this topic.
                if not topics.lost({name: of.topic_id}, self._deadline_seconds):
                    ends |= {part: LogEnd(extent.end, ms, monotonic) for part, extent in extents.items()}
            except KeyholeError as error:
                failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._take, asked, ends)
        if failed is not None:
            raise failed

    def _take(self, asked: Mapping[str, FollowedUpdates], ends: Mapping[Partition, LogEnd]) -> None:
        if not self._closed.is_set():
            self._heard({part: end for part, end in ends.items() if self.wants(part, asked[part.state].topic_id)})

    def _run(self) -> None:
        why = ""
        with contextlib.closing(self._changelog.updates_topics()) as topics:
            while not self._closed.is_set():
                try:
                    if self._wanted:
                        self.ask(topics)
                    why = ""
                except KeyholeError as error:
                    if error.message != why and not self._closed.is_set():
                        why = error.message
                        _log.warning("the ends of updates are not known", extra={"query": self._name, "why": why})
                except Exception:  # noqa: BLE001 - the top of a loop: were it to end, copies would grow old unheard
                    _log.exception("the ends of updates are not known", extra={"query": self._name})
                self._clock.wait(self._closed, _ASK_SECONDS)

    def close(self) -> None:
        """Returns at once; nothing is asked from then on. `join` waits for the thread."""
        self._closed.set()

    def join(self) -> None:
        """Blocks; not for ever: it may be waiting for a Kafka that is away."""
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)
