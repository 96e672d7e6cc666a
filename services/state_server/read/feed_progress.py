"""How far a state that is fed by updates has applied them here, and what came of them. Plain numbers, without locks:
the host thread writes them, others may read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from keyhole.clock import Clock
from keyhole.metrics.catalogue import BY_NAME
from keyhole.metrics.counters import Histogram


class GroupLag(NamedTuple):
    """What an owned key group has not applied.

    Attributes:
        since_monotonic: As of when it has applied all that there was; where that is not known, when it began here.
        updates: How many offsets its log has beyond what is applied, as of when it was read, or asked for, last.
        stopped: Nothing more of it is applied: its updates are gone, or can't be applied.
        waits: Its next rules need a newer descriptor.
    """

    since_monotonic: float
    updates: int
    stopped: bool = False
    waits: bool = False


class FeedLag(NamedTuple):
    """Of all key groups that are owned here and have begun.

    Attributes:
        seconds: How old one of them is, at most: what `max_staleness` bounds.
        updates, stopped, waiting: How many in all; see GroupLag.
    """

    seconds: float
    updates: int
    stopped: int
    waiting: int


class FeedProgress:
    """See the module's text.

    Args:
        clock: The owner's.
        groups: The key groups' lags now. Any thread.

    Attributes:
        applied: Updates that count, since the state was opened here. After another restore, some count again.
        repeated: Those that had counted before.
        refused: Records that changed nothing, and are for the topic of dead letters.
        assumed: Rows' numbers that were given up: see keyhole.protocol.seen.SeenRows. It should be 0.
        held_rows, held_bytes: What is in memory until it is committed; see FedState.
        full: No updates are read before what is held is committed: it is too much.
        seconds: From the broker's timestamp of an update until readers saw it. Event loop's.
        stored_ms: By owned key group, by when all of its updates were given to the watchers; see FedGroups.stored_ms.
            Event loop's.
    """

    def __init__(self, clock: Clock, groups: Callable[[], Sequence[GroupLag]] = tuple) -> None:
        self.applied = self.repeated = self.refused = self.assumed = 0
        self.held_rows = self.held_bytes = 0
        self.full = False
        self.stored_ms: Mapping[int, int] = {}
        self.seconds = Histogram(BY_NAME["keyhole_state_server_update_seconds"].buckets)
        self._clock = clock
        self._groups = groups

    def note_shown(self, arrived: Mapping[int, int]) -> None:
        """Readers see updates from now on.

        Args:
            arrived: How many, by the broker's timestamp: milliseconds since 1970.
        """
        now_ms = self._clock.now_ms()
        for timestamp_ms, updates in arrived.items():
            # Two clocks: what seems to come from the future has taken no time that they could tell.
            self.seconds.observe(max(0, now_ms - timestamp_ms) / 1000, updates)

    @property
    def complete_ms(self) -> int:
        """By when all updates of all key groups were given to the watchers: milliseconds since 1970; 0: not known."""
        return min(self.stored_ms.values(), default=0)

    def all_ms(self, key_groups: Iterable[int], complete_ms: int) -> int:
        """By when all updates of these key groups were given to a watcher.

        Args:
            complete_ms: By when all that was committed was.
        """
        return min((self.stored_ms.get(group, complete_ms) for group in key_groups), default=complete_ms)

    def lag(self) -> FeedLag:
        """What is not applied now."""
        groups, now = self._groups(), self._clock.monotonic()
        return FeedLag(
            max((now - of.since_monotonic for of in groups), default=0.0),
            sum(of.updates for of in groups),
            sum(of.stopped for of in groups),
            sum(of.waits for of in groups),
        )
