"""As of when a copy that follows has all updates of its state, though no epoch of such a state is ever complete.

It is asked each second where the partitions of what is followed end (ends_asking.py). So a copy knows its age whether
its owner commits, has nothing to commit, or is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from keyhole.changelog.base import Changelog, Partition, UpdatesTopics
from keyhole.clock import Clock
from keyhole.model.epoch import Position
from services.state_server.read.standing import Standing
from services.state_server.replica.ends_asking import EndsAsking, FollowedUpdates, LogEnd, LogEnds


class UpdatesEnds:
    """See the module's text. Event loop.

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
        self._asking = EndsAsking(changelog, query, clock, deadline_seconds, self._take, by_itself=by_itself)
        self._heard = heard
        self._topic_ids: Mapping[str, str] = {}
        self._ends: dict[Partition, LogEnds] = {}

    def want(self, followed: Mapping[str, FollowedUpdates]) -> None:
        """By state, what is followed from now on; of others all is forgotten, and so of one that was made anew."""
        before, self._topic_ids = self._topic_ids, {name: of.topic_id for name, of in followed.items()}
        self._asking.want(followed)
        self._ends = {
            part: ends for part, ends in self._ends.items() if self._asking.wants(part, before.get(part.state, ""))
        }

    def standing(self, part: Partition, position: Position) -> Standing:
        """What a copy at this position stands for. Its epoch is the next update, and its age may not be known yet."""
        ends = self._ends.get(part)
        reached = None if ends is None else ends.reached(position.epoch)
        if reached is None:
            return Standing(position.stamp)
        return Standing(position.stamp, as_of_ms=reached.ms, heard_monotonic=reached.monotonic)

    def ask(self, topics: UpdatesTopics) -> None:
        """Asks once. Blocks, and raises, as EndsAsking.ask."""
        self._asking.ask(topics)

    def _take(self, ends: Mapping[Partition, LogEnd]) -> None:
        for part, end in ends.items():
            self._ends.setdefault(part, LogEnds()).add(end)
        self._heard()

    def close(self) -> None:
        """Returns at once; nothing is asked from then on. `join` waits for the thread."""
        self._asking.close()

    def join(self) -> None:
        """Blocks; not for ever: it may be waiting for a Kafka that is away."""
        self._asking.join()
