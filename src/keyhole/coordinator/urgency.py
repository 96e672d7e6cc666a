"""Which owners must be replaced at once, though a batch is under way whose rows must then be staged again. Pure.

A batch may take minutes. Without this, the key groups of a server that is lost meanwhile would have no owner until its
tasks have ended, and one that drains would end before anybody takes over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from keyhole.coordinator.membership import Membership, Sighting

DRAIN_PATIENCE_SECONDS = 5.0
"""How long a server that drains waits for the batch that is under way: most batches end before, and cost nothing."""


class Urgency:
    """What was seen since the batch began. For one thread.

    Args:
        drain_patience_seconds: See DRAIN_PATIENCE_SECONDS.
    """

    def __init__(self, drain_patience_seconds: float = DRAIN_PATIENCE_SECONDS) -> None:
        self._drain_patience_seconds = drain_patience_seconds
        self._lost: frozenset[str] = frozenset()
        self._draining: dict[str, float] = {}

    def of(
        self,
        membership: Membership,
        unconfirmed: Collection[str],
        seen: Mapping[str, Sighting],
        now_monotonic: float,
    ) -> frozenset[str]:
        """The owners that can't wait, at one heartbeat.

        A lost one is lost at two in a row: to take a slow server for a lost one would cost a batch.

        Args:
            unconfirmed: Members that did not confirm the assignment just now.
            seen: The servers that answer now, by id.
        """
        assignment = membership.assignment
        owners = {assignment.servers[index] for of in assignment.owners.values() for index in of}
        lost = {
            name
            for name in owners.intersection(unconfirmed)
            if name not in seen or seen[name].target != membership.members[name].target
        }
        draining = {name for name in owners.intersection(seen) if seen[name].draining}
        self._draining = {name: self._draining.get(name, now_monotonic) for name in draining}
        late = {name for name, since in self._draining.items() if now_monotonic - since >= self._drain_patience_seconds}
        urgent = frozenset(lost & self._lost | late)
        self._lost = frozenset(lost)
        return urgent
