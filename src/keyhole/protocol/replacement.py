"""Which owners must be replaced at once, though a batch is under way whose rows must then be staged again. Pure.

A batch may take minutes. Without this, the key groups of a server that is lost meanwhile would have no owner until its
tasks have ended, and one that is about to end would do so before anybody takes over. One that drains and goes on has
the time: it gives its key groups away between two batches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from keyhole.protocol.membership import Membership, Sighting


@dataclass(frozen=True)
class Patience:
    """How long a batch that is under way goes first, in seconds: most end before, and are staged once.

    Attributes:
        lost: With a server that does not answer. As long as a lease: then its answers are unconfirmed anyway.
        ending: With one that is about to end.
    """

    lost: float = 3.0
    ending: float = 5.0


class Urgency:
    """What was seen since the batch began to be staged. For one thread."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._lost: dict[str, float] = {}
        self._ending: dict[str, float] = {}

    def of(
        self,
        membership: Membership,
        unconfirmed: Collection[str],
        seen: Mapping[str, Sighting],
        now_monotonic: float,
    ) -> frozenset[str] | None:
        """The owners that can't wait, at one heartbeat; None: nothing should be changed yet.

        A change replaces all who don't answer. So there is none while a member may be lost or merely be slow: to know
        it takes two heartbeats in a row at least.

        Args:
            unconfirmed: Members that did not confirm the assignment just now.
            seen: The servers that answer now, by id.
        """
        assignment = membership.assignment
        owners = {assignment.servers[index] for of in assignment.owners.values() for index in of}
        lost = {
            name
            for name in membership.members
            if name not in seen or (name in unconfirmed and seen[name].target != membership.members[name].target)
        }
        ending = {name for name in owners if name in seen and seen[name].ending}
        before = self._lost.keys()
        self._lost = _since(self._lost, lost, now_monotonic)
        self._ending = _since(self._ending, ending, now_monotonic)
        certain = {name for name in lost & before if now_monotonic - self._lost[name] >= self._patience.lost}
        if lost - certain:
            return None
        late = {name for name, since in self._ending.items() if now_monotonic - since >= self._patience.ending}
        return frozenset((certain & owners) | late)


def _since(before: Mapping[str, float], now: Iterable[str], now_monotonic: float) -> dict[str, float]:
    return {name: before.get(name, now_monotonic) for name in now}
