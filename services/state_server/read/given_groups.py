"""What this server was given of one state: the key groups to own and to follow, and how far it has them. The only
writer of these facts, on the event loop.

What may be written, and what a standby may show, is said by KeyGroups (replica/key_groups.py), on the host's thread.
What is here is the assignment, and what readers see; that lags behind KeyGroups until a view is published.
"""

from __future__ import annotations

from services.state_server.read.copies import Copy


class GivenGroups:
    """See the module's text. All but `assigned` is read by the event loop alone.

    Args:
        owned: The copy that answers as the owner's.
        standby: The copy that answers as a standby's.
    """

    def __init__(self, owned: Copy, standby: Copy) -> None:
        self._owned = owned
        self._standby = standby
        self._assigned: frozenset[int] = frozenset()
        self._followed: frozenset[int] = frozenset()
        self._warm: frozenset[int] = frozenset()
        self._ready = False
        self._awaiting = False

    @property
    def assigned(self) -> frozenset[int]:
        """The key groups to own, readable or not. The host's thread reads it, too."""
        return self._assigned

    @property
    def followed(self) -> frozenset[int]:
        """The key groups to follow, readable or not."""
        return self._followed

    @property
    def warm(self) -> frozenset[int]:
        """Followed key groups that had reached the changelog's end when last a view of the standby copy was taken."""
        return self._warm

    @property
    def ready(self) -> bool:
        """All that was assigned is answered for as its owner."""
        return self._ready

    @property
    def awaiting(self) -> bool:
        """A take-over is under way, which is to show key groups that are not answered for yet."""
        return self._awaiting

    @property
    def readable(self) -> bool:
        """Whether all that is to be owned is answered for as its owner, and all that is to be followed as a standby."""
        return self._assigned <= self._owned.groups and self._followed <= self._standby.groups

    def assign(self, groups: frozenset[int]) -> None:
        """These are to be owned from now on. Readers see the same as before."""
        self._assigned = groups

    def begin_take_over(self) -> None:
        """What is not to be owned is no longer answered for as its owner; what is to be owned is about to be read."""
        self._owned.withdraw(self._owned.groups - self._assigned)
        self._ready = self._assigned <= self._owned.groups
        self._awaiting = not self._ready

    def taken_over(self) -> None:
        """All that was assigned is published. Until now the standby copy answered for what was followed of it."""
        self._ready = True
        self._standby.withdraw(self._owned.groups)

    def take_over_ended(self) -> None:
        """However it has: what comes to be owned is shown as it comes. Idempotent."""
        self._awaiting = False

    def release(self, groups: frozenset[int]) -> None:
        """These are not to be owned any more, and not answered for as their owner."""
        self._assigned -= groups
        self._owned.withdraw(groups)

    def follow(self, groups: frozenset[int], shown: frozenset[int]) -> None:
        """These are to be followed from now on, and no others.

        Args:
            shown: The standby copy answers for no others; see KeyGroups.
        """
        self._followed = groups
        self._standby.withdraw(self._standby.groups - shown)

    def caught_up(self, warm: frozenset[int]) -> bool:
        """These followed ones, and no others, have reached the changelog's end. Returns whether that is news."""
        different, self._warm = warm != self._warm, warm
        return different

    def close(self) -> None:
        """Nothing is to be owned or followed any more."""
        self._assigned = self._followed = frozenset()
