"""What changes in one state while somebody watches it: the last epochs of it in memory, and who waits for the next.

Where nobody watches, nothing is kept: what it costs then is a look at `Changes.active` for each key group's write.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

from keyhole.encoding.watch_token import WatchMark
from keyhole.model.epoch import Position
from services.state_server.read.group_watchers import GroupWatchers
from services.state_server.read.watcher import MOST_BYTES, GroupEpoch, Watcher

_LINGER_SECONDS = 60.0
# Of so many epochs of a key group, the last ones, what was made for one who watches is kept for others.
_RECENT_EPOCHS = 16
# In one turn of the event loop: a commit is answered before thousands of watchers have had theirs.
_WOKEN_AT_ONCE = 20


class Changes:
    """See the module's text. Event loop, but for `active` and what is wanted, which the host's thread reads.

    Args:
        most_bytes: That are kept of the last epochs.

    Attributes:
        active: What is written is to be kept.
        wants_befores: With what was there before.
        positions: How far each key group is, for whoever watches: all before has been given to the watchers.
        closed: Nothing of the state is here any more.
        let_go: Counts watchers that were too slow.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.active = False
        self.wants_befores = False
        self.positions: dict[int, Position] = {}
        self.closed = False
        self.let_go = 0
        self._most_bytes = most_bytes
        self._ring: deque[GroupEpoch] = deque()
        self._bytes = 0
        # By key group: the ring has all behind this offset.
        self._floors: dict[int, int] = {}
        self._recent: dict[int, deque[GroupEpoch]] = {}
        self._watchers: set[Watcher] = set()
        # All of them, and those that are not attached yet, or not at the moment.
        self._expected: set[Watcher] = set()
        self._by_group: dict[int, GroupWatchers] = {}
        # How many of them ask for what was there before.
        self._of_befores = 0
        self._to_wake: dict[Watcher, None] = {}
        self._waking: asyncio.Handle | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._resting_befores: asyncio.TimerHandle | None = None

    @property
    def watchers(self) -> int:
        """Counts those who are attached."""
        return len(self._watchers)

    @property
    def kept_bytes(self) -> int:
        """About what the epochs take that are kept."""
        return self._bytes

    def expect(self, watcher: Watcher, positions: Callable[[], Mapping[int, Position]]) -> None:
        """It is going to attach: from now on, until it detaches, what is written is kept.

        Args:
            positions: Where each key group is now. Asked where nothing is kept yet; whoever failed is not expected.
        """
        if not self.active:
            self.positions = dict(positions())
            self._floors = {group: position.offset for group, position in self.positions.items()}
            self.active = True
        if watcher not in self._expected:
            self._expected.add(watcher)
            self._of_befores += watcher.befores
            self.wants_befores |= watcher.befores

    def _linger(self) -> None:
        """What is written is kept for a while, for those who come back."""
        if self._resting is not None:
            self._resting.cancel()
        self._resting = asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._rest)

    def _linger_befores(self) -> None:
        """So is what was there before it."""
        if self._resting_befores is not None:
            self._resting_befores.cancel()
        self._resting_befores = asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._rest_befores)

    def _rest_befores(self) -> None:
        self._resting_befores = None
        self.wants_befores = self._of_befores > 0

    def _rest(self) -> None:
        self._resting = None
        if not self._expected:
            self.active = False
            self._ring.clear()
            self._recent.clear()
            self._bytes = 0
            self._floors, self.positions = {}, {}

    def attach(self, watcher: Watcher, marks: Mapping[int, WatchMark]) -> bool:
        """Gives a watcher, one that is expected, what has come behind its marks, and from now on what comes.

        Args:
            marks: Of each of its key groups.

        Returns:
            False: some of it is not in memory. Nothing was given then.
        """
        behind = {
            group: marks[group]
            for group in watcher.key_groups
            if marks[group].skip or marks[group].offset < self.positions[group].offset
        }
        if any(mark.offset < self._floors[group] for group, mark in behind.items()):
            return False
        watcher.lost = False
        self._add(watcher)
        if behind:
            first = set(behind)
            for epoch in self._ring:
                mark = behind.get(epoch.key_group)
                if mark is not None and epoch.after.offset > mark.offset:
                    skip = mark.skip if epoch.key_group in first else 0
                    first.discard(epoch.key_group)
                    watcher.give(watcher.behind(epoch, skip))
        watcher.unsure = False
        return True

    def detach(self, watcher: Watcher) -> None:
        """It watches no more. Idempotent."""
        if watcher in self._watchers:
            self._drop(watcher)
        if watcher not in self._expected:
            return
        self._expected.discard(watcher)
        self._of_befores -= watcher.befores
        if watcher.befores and not self._of_befores and not self.closed:
            self._linger_befores()
        if not self._expected and not self.closed:
            self._linger()

    def _add(self, watcher: Watcher) -> None:
        if watcher in self._watchers:
            return
        self._watchers.add(watcher)
        for group in watcher.key_groups:
            self._by_group.setdefault(group, GroupWatchers(group)).add(watcher)

    def _drop(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)
        for group in watcher.key_groups:
            self._by_group[group].remove(watcher)

    def _wake(self, watcher: Watcher) -> None:
        self._to_wake[watcher] = None
        if self._waking is None:
            self._waking = asyncio.get_running_loop().call_soon(self._wake_some)

    def _wake_some(self) -> None:
        for watcher in list(itertools.islice(self._to_wake, _WOKEN_AT_ONCE)):
            del self._to_wake[watcher]
            watcher.wake()
        self._waking = asyncio.get_running_loop().call_soon(self._wake_some) if self._to_wake else None

    def published(self, epochs: Iterable[GroupEpoch], positions: Mapping[int, Position]) -> None:
        """Readers see these epochs from now on.

        Args:
            epochs: As far as they were kept, in their order.
            positions: Where key groups are now. Where that is further than the epochs say, the rest is not in memory.
        """
        if not self.active:
            return
        for epoch in epochs:
            at = self.positions.get(epoch.key_group)
            if at is not None and epoch.after.offset <= at.offset:
                continue
            if at is None or epoch.before != at.offset or epoch.changes is None:
                self._gap(epoch.key_group, epoch.after)
            else:
                self._keep(epoch)
        for group, position in positions.items():
            at = self.positions.get(group)
            if at is None or position.offset > at.offset:
                self._gap(group, position)

    def _gap(self, key_group: int, position: Position) -> None:
        self.positions[key_group] = position
        self._floors[key_group] = position.offset
        for watcher in list(self._of(key_group).all):
            self._drop(watcher)
            watcher.lose()
            self._wake(watcher)

    def _of(self, key_group: int) -> GroupWatchers:
        return self._by_group.get(key_group) or GroupWatchers(key_group)

    def _keep(self, epoch: GroupEpoch) -> None:
        self.positions[epoch.key_group] = epoch.after
        self._ring.append(epoch)
        self._bytes += epoch.size
        recent = self._recent.setdefault(epoch.key_group, deque())
        recent.append(epoch)
        if len(recent) > _RECENT_EPOCHS:
            recent.popleft().let_made_go()
        while self._bytes > self._most_bytes:
            oldest = self._ring.popleft()
            self._bytes -= oldest.size
            # Else it would be kept though its bytes count no more.
            if (kept := self._recent.get(oldest.key_group)) and kept[0] is oldest:
                kept.popleft()
            self._floors[oldest.key_group] = max(self._floors[oldest.key_group], oldest.after.offset)
        for watcher, pending in self._of(epoch.key_group).given(epoch):
            watcher.give(pending)
            self._wake(watcher)
            if watcher.error is not None:
                self._drop(watcher)
                self.let_go += 1

    def look(self, key_groups: AbstractSet[int]) -> None:
        """Those who watch others than these are to look whether they can go on."""
        for watcher in self._watchers:
            if not watcher.key_groups <= key_groups:
                self._wake(watcher)

    def close(self) -> None:
        """Nothing of the state is here any more: all who watch are to look. Idempotent."""
        self.closed = True
        self.active = False
        for resting in (self._resting, self._resting_befores):
            if resting is not None:
                resting.cancel()
        for watcher in self._watchers:
            watcher.wake()
