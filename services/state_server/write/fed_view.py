"""What readers are answered from of a state that is fed by updates: which key groups, and what each stands for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from keyhole.stores.base import Snapshot
from services.state_server.read.standing import Standing
from services.state_server.replica.hosted import StateReplica
from services.state_server.write.failed_groups import FailedGroups
from services.state_server.write.fed_group import FedGroup
from services.state_server.write.state_feed import StateFeed


class FedView:
    """Of one state, and what of it readers have yet to see. Host thread only.

    Args:
        begun: By key group, those that were begun.
        failed: Those that failed: readers go on seeing of them what they saw before.
    """

    def __init__(
        self, state: StateReplica, feed: StateFeed, begun: Mapping[int, FedGroup], failed: FailedGroups
    ) -> None:
        self._state = state
        self._feed = feed
        self._begun = begun
        self._failed = failed
        self._different = False
        # Key groups whose standing is another one than readers have seen; or any may be.
        self._changed: set[int] = set()
        self._restated = True

    def shown(self) -> frozenset[int]:
        """The owned key groups that readers may be answered from."""
        owned = self._state.groups.owned
        shown = [of for of, group in self._begun.items() if group.shown and of in owned]
        return frozenset([*shown, *self._failed.kept])

    def snapshot(self) -> Snapshot:
        """All that is applied; close it."""
        return self._feed.snapshot(self._failed.overlays)

    def standings(self, key_groups: Iterable[int]) -> dict[int, Standing]:
        """What they stand for: an epoch is the offset of the next update, its time the last one's by the log.

        `as_of_ms` is when it was asked for an end of the log that they have come to; 0: not known.

        Their generation, and version, are 0: they are the owner's.
        """
        return {of: self._standing(of) for of in key_groups}

    def _standing(self, key_group: int) -> Standing:
        kept = self._failed.standing(key_group)
        if kept is not None:
            return kept
        group = self._begun[key_group]
        stamp = group.stamp if group.why is None else self._state.position(key_group).stamp
        return replace(group.standing, stamp=stamp)

    def moved(self, key_group: int) -> None:
        """What it stands for is another one."""
        self._changed.add(key_group)

    def restate(self, *, soon: bool) -> None:
        """Readers may see something else than they have seen: all is said again with the next update, or soon."""
        self._restated = True
        self._different |= soon

    def take_changed(self) -> frozenset[int] | None:
        """The key groups whose standing is another one since this was asked last; None: any, or others are shown."""
        changed, self._changed = frozenset(self._changed), set()
        restated, self._restated = self._restated, False
        return None if restated else changed

    def take_different(self) -> bool:
        """Whether readers are to see something else soon, since this was asked last."""
        different, self._different = self._different, False
        return different
