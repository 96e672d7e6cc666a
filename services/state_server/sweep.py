"""Removes what has expired, a part of the state at each epoch; readers don't see it from the moment it has.

The owner looks at some entries while it commits an epoch, going round and round over its key groups. What it removes
rides in the epoch's transaction, so that the changelog, the standbys and every later restore lack it too. Nothing here
decides what readers see, so nothing depends on when, or in which of an epoch's tries, an entry is come by: an epoch
that is run again finds its key groups committed, with what was removed then.

A round that has passed everything knows the earliest time at which anything can expire: until then nothing is looked
at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass, field

from keyhole.stored import NOT_KNOWN, STAMP_BYTES, Lifetime
from services.state_server.merging import Change, Epoch, Stored

# An epoch looks at so many entries at least, about 1 ms (LMDB, measured: 0.6 us each).
_ENTRIES = 2_000
# And at so many bytes of them.
_BYTES = 8 << 20
# A larger state is passed in a hundred epochs, where that takes no more than about 12 ms of each.
_PARTS, _MOST_OF_PARTS = 100, 20_000
# And at twice what the epoch itself writes. So, however much is written, what has expired never outgrows the rest: at
# most half of what is passed is of the epochs since.
_OF_WRITTEN = 2
# Partitions that are in the transaction for this alone: each costs about 1 ms.
_PARTITIONS = 8
# To begin with a key group takes as long as so many entries.
_KEY_GROUP = 5


@dataclass(frozen=True)
class Written:
    """What the epoch brings itself: how much, about, and the key groups that are in its transaction anyway."""

    entries: int = 0
    bytes: int = 0
    key_groups: Container[int] = frozenset()


@dataclass(frozen=True)
class Swept:
    """What an epoch is to remove, or to give its time.

    Attributes:
        changes: By key group, ascending by storage key.
        at: The storage key, or the beginning of one, at which the next epoch goes on; empty: a new round begins.
        due: See Sweeper.
    """

    changes: Mapping[int, list[Change]] = field(default_factory=dict)
    at: bytes = b""
    due: bytes = NOT_KNOWN


class Sweeper:
    """Of one state that has a ttl. Host thread only.

    Its `due`, a stamp: nothing that the round has passed expires before it, and nothing that was written since the
    round began.

    Args:
        lives: May be replaced: what was written keeps its time.
        entries: How many the store holds; asked once in a round.
    """

    def __init__(self, lives: Lifetime, entries: Callable[[], int]) -> None:
        self.lives = lives
        self._count = entries
        self._entries = 0
        self._at = b""
        self._due = NOT_KNOWN

    def begin_anew(self) -> None:
        """There are entries that it knows nothing of: restored ones, or those of an epoch that it did not look at."""
        self._at, self._due = b"", NOT_KNOWN

    def look(self, stored: Stored, key_groups: Collection[int], epoch: Epoch, written: Written) -> Swept:
        """Goes on for one epoch. The next one begins where this one did, until it is told by `done` to go on.

        Args:
            stored: The state before the epoch.
            key_groups: Those that may be written.
        """
        expired, stamp = self.lives.expired(epoch.moment), self.lives.stamp(epoch.written)
        # Also if the epoch should fail: it may turn out to have been committed.
        self._due = min(self._due, stamp)
        if expired == NOT_KNOWN or (not self._at and self._due > expired):
            return Swept(due=self._due)
        if not self._at:
            self._entries = self._count()
        course = _Course(expired, stamp, self._due if self._at else stamp, self._budget(written))
        at = course.pass_over(stored, key_groups, self._at, written.key_groups)
        return Swept(course.changes, at, course.due)

    def _budget(self, written: Written) -> _Budget:
        part = min(self._entries // _PARTS, _MOST_OF_PARTS)
        return _Budget(
            max(_ENTRIES, part, _OF_WRITTEN * written.entries), max(_BYTES, _OF_WRITTEN * written.bytes), _PARTITIONS
        )

    def done(self, swept: Swept) -> None:
        """The epoch is committed, with these changes."""
        self._at, self._due = swept.at, swept.due


@dataclass
class _Budget:
    """What an epoch may still spend."""

    entries: int
    bytes: int
    partitions: int


class _Course:
    """What one epoch does: see Sweeper.look."""

    def __init__(self, expired: bytes, stamp: bytes, due: bytes, budget: _Budget) -> None:
        self.changes: dict[int, list[Change]] = {}
        self.due = due
        self._expired = expired
        self._stamp = stamp
        self._budget = budget

    def pass_over(self, stored: Stored, key_groups: Collection[int], at: bytes, beside: Container[int]) -> bytes:
        """Where it stopped; empty: it has passed everything."""
        for group in sorted(key_groups):
            prefix = group.to_bytes(2, "big")
            if prefix < at[:2]:
                continue
            if self._budget.partitions <= 0 or self._budget.entries <= 0:
                return prefix
            self._budget.entries -= _KEY_GROUP
            stopped = self._key_group(stored, group, max(prefix, at))
            if group in self.changes and group not in beside:
                self._budget.partitions -= 1
            if stopped:
                return stopped
        return b""

    def _key_group(self, stored: Stored, key_group: int, start: bytes) -> bytes:
        """The storage key that it stopped at; empty: it has passed the key group."""
        found: list[Change] = []
        budget, expired, due, stopped = self._budget, self._expired, self.due, b""
        for key, entry in stored.items(key_group, start):
            if budget.entries <= 0 or budget.bytes <= 0:
                stopped = key
                break
            budget.entries -= 1
            budget.bytes -= len(entry)
            expires = entry[:STAMP_BYTES]
            if expires == NOT_KNOWN:
                found.append((key, self._stamp + entry[STAMP_BYTES:]))
            elif expires <= expired:
                found.append((key, None))
            elif expires < due:
                due = expires
        self.due = due
        if found:
            self.changes[key_group] = found
        return stopped


def beside(written: list[Change], swept: list[Change]) -> list[Change]:
    """An epoch's own changes of a key group and what is swept of it, ascending; a key that both have is the epoch's."""
    if not swept:
        return written
    own = {key for key, _ in written}
    return sorted([*written, *(change for change in swept if change[0] not in own)])
