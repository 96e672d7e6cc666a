"""Key groups of a state that is fed by updates which failed, and begin anew from what was committed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from keyhole.clock import Clock
from keyhole.stores.overlay import Overlay
from services.state_server.read.feed_progress import GroupLag
from services.state_server.read.standing import Standing
from services.state_server.write.fed_group import FedGroup

# One that failed twice before it was where it had been begins anew no sooner.
_AGAIN_SECONDS = 1.0


class _LastView(NamedTuple):
    """What readers go on seeing of a key group.

    Attributes:
        overlay: What stood over the store. What is committed on the way is in it already, in the same form or a newer
            one: so the store may move on below it.
        since: See FedGroup.
    """

    tenure: int
    overlay: Overlay
    standing: Standing
    since: float


class FailedGroups:
    """Of one state: what readers see of each until it is there again, and when it may begin. Host thread only.

    Args:
        tenure: See KeyGroups.tenure.
    """

    def __init__(self, tenure: Callable[[int], int], clock: Clock) -> None:
        self._tenure = tenure
        self._clock = clock
        # How far they were, which readers may have seen.
        self._seen: dict[int, int] = {}
        self._not_before: dict[int, float] = {}
        self._kept: dict[int, _LastView] = {}

    def add(self, key_group: int, group: FedGroup, before: Overlay) -> None:
        """It has failed. What readers saw of it (`before`) they go on seeing."""
        self._seen[key_group] = max(group.shown_from, group.at)
        if group.again and not group.shown:
            self._not_before[key_group] = self._clock.monotonic() + _AGAIN_SECONDS
        if group.shown:
            self._kept[key_group] = _LastView(group.tenure, before, group.standing, group.since)

    def may_begin(self, key_group: int) -> bool:
        """Whether it may begin now. True also of one that has not failed."""
        now = self._clock.monotonic()
        return self._not_before.get(key_group, now) <= now

    def begun(self, key_group: int) -> int | None:
        """It has begun anew. Returns up to where readers may have seen it; None: it had not failed."""
        return self._seen.pop(key_group, None)

    def there_again(self, key_group: int) -> None:
        """Readers see what is applied of it, or what is stored where it was refused. Idempotent."""
        self._kept.pop(key_group, None)

    def leave(self) -> None:
        """Forgets what was kept of those that are not owned any more, or are owned anew."""
        self._kept = self._still_kept()

    def _still_kept(self) -> dict[int, _LastView]:
        return {of: kept for of, kept in self._kept.items() if self._tenure(of) == kept.tenure}

    @property
    def kept(self) -> Collection[int]:
        """Those of which readers see what they saw before."""
        return self._still_kept().keys() if self._kept else ()

    @property
    def overlays(self) -> Mapping[int, Overlay]:
        """What stands over the store for these."""
        return {of: kept.overlay for of, kept in self._still_kept().items()} if self._kept else {}

    def standing(self, key_group: int) -> Standing | None:
        """What it stands for as readers see it; None: nothing is kept of it."""
        kept = self._kept.get(key_group)
        return None if kept is None else kept.standing

    def lags(self) -> list[GroupLag]:
        """Any thread: no key group comes or goes while a dict is copied."""
        return [GroupLag(kept.since, 0) for kept in list(self._kept.values())]
