"""As of when a copy that follows has all updates of its state, though no epoch of such a state is ever complete.

    asked at 12:00:00   the updates partition ends at 70
    asked at 12:00:01   it ends at 90
    the copy is at 75   it has all that there was at 12:00:00

Each second it is asked where the partitions of what is followed end. So a copy knows its age whether its owner commits,
has nothing to commit, or is gone.
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
from keyhole.model.epoch import Position
from services.state_server.read.standing import Standing

_log = logging.getLogger(__name__)

_ASK_SECONDS = 1.0
_JOIN_SECONDS = 3.0
# Of a key group that is far behind, every second one is forgotten beyond so many.
_MOST_ENDS = 64


class FollowedUpdates(NamedTuple):
    """The updates topic of a state, by Kafka's id, and the key groups of it that are followed."""

    topic_id: str
    key_groups: frozenset[int]


class _End(NamedTuple):
    """Where a partition ended, and when that was asked, by either clock."""

    offset: int
    ms: int
    monotonic: float


class UpdatesEnds:
    """See the module's text. Event loop; a thread of its own asks, from the first state on that is fed by updates.

    Args:
        heard: Is called on the event loop when more is known.
        by_itself: Else whoever tests it calls `ask`.
    """

    def __init__(
        self,
        changelog: Changelog,
        query: str,
        clock: Clock,
        deadline_seconds: float,
        heard: Callable[[], None],
        *,
        by_itself: bool,
    ) -> None:
        self._changelog = changelog
        self._query = query
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._heard = heard
        self._by_itself = by_itself
        self._loop = asyncio.get_running_loop()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        # Replaced as a whole: the thread reads it.
        self._wanted: Mapping[str, FollowedUpdates] = {}
        # Ascending: ends that were not reached yet; and of each partition the last one that was.
        self._ahead: dict[Partition, list[_End]] = {}
        self._reached: dict[Partition, _End] = {}

    def want(self, followed: Mapping[str, FollowedUpdates]) -> None:
        """By state, what is followed from now on; of others all is forgotten, and so of one that was made anew."""
        wanted = {name: of for name, of in followed.items() if of.key_groups}
        kept = {
            Partition(name, group)
            for name, of in wanted.items()
            if (before := self._wanted.get(name)) is not None and before.topic_id == of.topic_id
            for group in of.key_groups
        }
        self._ahead = {part: ends for part, ends in self._ahead.items() if part in kept}
        self._reached = {part: end for part, end in self._reached.items() if part in kept}
        self._wanted = wanted
        if wanted and self._by_itself and self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._run, name=f"keyhole-ends-{self._query}", daemon=True)
            self._thread.start()

    def standing(self, part: Partition, position: Position) -> Standing:
        """What a copy at this position stands for. Its epoch is the next update, and its age may not be known yet."""
        ahead = self._ahead.get(part, [])
        while ahead and ahead[0].offset <= position.epoch:
            self._reached[part] = ahead.pop(0)
        reached = self._reached.get(part)
        if reached is None or reached.offset > position.epoch:  # it was dropped since, and begins anew
            return Standing(position.stamp)
        return Standing(position.stamp, as_of_ms=reached.ms, heard_monotonic=reached.monotonic)

    def ask(self, topics: UpdatesTopics) -> None:
        """Asks once, and has what it hears taken in on the event loop. Blocks; any thread but the loop's.

        Raises:
            KeyholeError: Of a state nothing is heard; of the others it is.
        """
        failed: KeyholeError | None = None
        ends: dict[Partition, _End] = {}
        asked = self._wanted
        for name, of in asked.items():
            ms, monotonic = self._clock.now_ms(), self._clock.monotonic()
            try:
                extents = topics.extents({name: sorted(of.key_groups)}, self._deadline_seconds)
                # After the extents: so they are of this topic.
                if not topics.lost({name: of.topic_id}, self._deadline_seconds):
                    ends |= {part: _End(extent.end, ms, monotonic) for part, extent in extents.items()}
            except KeyholeError as error:
                failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._take, asked, ends)
        if failed is not None:
            raise failed

    def _take(self, asked: Mapping[str, FollowedUpdates], ends: Mapping[Partition, _End]) -> None:
        for part, end in ends.items():
            of = self._wanted.get(part.state)
            if of is None or part.key_group not in of.key_groups or of.topic_id != asked[part.state].topic_id:
                continue
            ahead = self._ahead.setdefault(part, [])
            # Also ends above it, which were lost: a copy would wait for them for ever.
            while ahead and ahead[-1].offset >= end.offset:
                ahead.pop()
            if len(ahead) >= _MOST_ENDS:
                del ahead[1::2]
            ahead.append(end)
        if not self._closed.is_set():
            self._heard()

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
                        _log.warning("the ends of updates are not known", extra={"query": self._query, "why": why})
                except Exception:  # noqa: BLE001 - the top of a loop: were it to end, copies would grow old unheard
                    _log.exception("the ends of updates are not known", extra={"query": self._query})
                self._clock.wait(self._closed, _ASK_SECONDS)

    def close(self) -> None:
        """Returns at once; nothing is asked from then on. `join` waits for the thread."""
        self._closed.set()

    def join(self) -> None:
        """Blocks; not for ever: it may be waiting for a Kafka that is away."""
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)
