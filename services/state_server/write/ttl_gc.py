"""Removes what has expired, a part of the state at each epoch; readers don't see it from the moment it has.

Deletions that are remembered (`order_by`) expire as well, and readers never see them.

The owner looks at some entries while it commits an epoch, going round and round over its key groups. What it removes
rides in the epoch's transaction, so that the changelog, the standbys and every later restore lack it too. Nothing here
decides what readers see, so nothing depends on when, or in which of an epoch's tries, an entry is come by. An epoch
that is run again finds its key groups committed, with what was removed then.

A round that has passed everything knows the earliest time at which anything can expire: until then nothing is looked
at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from keyhole.encoding.envelope import NEVER, NOT_KNOWN, Lifetime
from keyhole.encoding.storage_key import GROUP_BYTES, prefix_of
from services.state_server.write.merging import CommitContext, EntryChange, Stored

# An epoch looks at twice what it writes itself: so at any rate of writing, what has expired does not outgrow the rest.
_OF_WRITTEN = 2


@dataclass(frozen=True)
class SweepLimits:
    """How much an epoch does of it.

    Attributes:
        entries: It looks at so many at least, about 1 ms (LMDB, measured: 0.6 us each).
        bytes: And at so many of them.
        parts: A larger state is passed in so many epochs.
        most_of_parts: Where that is no more entries of each, about 12 ms.
        partitions: That are in the transaction for this alone: each costs about 1 ms.
        key_group: To begin with one takes as long as so many entries.
    """

    entries: int = 2_000
    bytes: int = 8 << 20
    parts: int = 100
    most_of_parts: int = 20_000
    partitions: int = 8
    key_group: int = 5


class Written(NamedTuple):
    """How much the epoch itself brings, about."""

    entries: int
    bytes: int


@dataclass
class Budget:
    """What an epoch may still spend. `key_group`: what one costs, in entries."""

    entries: int
    bytes: int
    partitions: int
    key_group: int


class Sweeper:
    """Of one state that has a ttl, or remembers deletions. Host thread only.

    Its `due`, a stamp: nothing that the round has passed expires before it, and nothing that was written since the
    round began.

    Attributes:
        lives, limits: May be replaced: what was written keeps its time.

    Args:
        entries: How many the store holds; asked once in a round, if that takes more than one epoch.
    """

    def __init__(self, lives: Lifetime, entries: Callable[[], int]) -> None:
        self.lives = lives
        self.limits = SweepLimits()
        self._count = entries
        self._entries = 0
        self._at = b""
        self._due = NOT_KNOWN
        self._written = NEVER

    def begin_anew(self) -> None:
        """There are entries that it knows nothing of: restored ones, or those of an epoch that it did not look at."""
        self._at, self._due = b"", NOT_KNOWN

    def begin(self, stored: Stored, context: CommitContext, written: Written) -> GcPass | None:
        """What one epoch is to look at; None: nothing. The next one begins where this one does, but for `done`.

        Args:
            stored: The state before the epoch.
        """
        expired, stamp = self.lives.expired(context.moment), self.lives.stamp(context.written)
        # Also if the epoch should fail: it may turn out to have been committed.
        self._due = min(self._due, stamp)
        self._written = NEVER
        if expired == NOT_KNOWN or (not self._at and self._due > expired):
            return None
        # Not for a round that ends where it begins: a store may have to count.
        self._entries = 0 if not self._at else self._entries or self._count()
        due = self._due if self._at else stamp
        return GcPass(stored, expired, due, self._at, self._budget(written), self.lives, context)

    def wrote(self, changes: Iterable[EntryChange]) -> None:
        """What the epoch that has begun writes to a key group.

        Rows have been counted on: all of an epoch have one stamp. Deletions have another, and most epochs have none.
        """
        if not self.lives.keep_deleted_ms:
            return
        is_deletion, stamp_of = self.lives.is_deletion, self.lives.stamp_of
        stamps = (stamp_of(entry) for _, entry in changes if entry is not None and is_deletion(entry))
        # All of an epoch have the same.
        self._written = min(self._written, next(stamps, NEVER))
        self._due = min(self._due, self._written)

    def _budget(self, written: Written) -> Budget:
        limits = self.limits
        part = min(self._entries // limits.parts, limits.most_of_parts)
        return Budget(
            max(limits.entries, part, _OF_WRITTEN * written.entries),
            max(limits.bytes, _OF_WRITTEN * written.bytes),
            limits.partitions,
            limits.key_group,
        )

    def done(self, gc: GcPass) -> None:
        """The epoch is committed, with what the pass has found."""
        self._at, self._due = gc.at, min(gc.due, self._written)


class GcPass:
    """One epoch's part of a round: is shown the key groups, and says what is to be written to them.

    Attributes:
        at: The storage key, or the beginning of one, at which the next epoch goes on; empty: a new round begins.
        due: See Sweeper.
    """

    def __init__(
        self,
        stored: Stored,
        expired: bytes,
        due: bytes,
        start: bytes,
        budget: Budget,
        lives: Lifetime,
        context: CommitContext,
    ) -> None:
        self.at = b""
        self.due = due
        self._stored = stored
        self._expired = expired
        self._start = start
        self._budget = budget
        self._lives = lives
        self._entry = lives.entries(context.written)

    def of(self, key_group: int, *, written: bool) -> list[EntryChange]:
        """What is to be written to a key group for this alone, ascending by storage key.

        Called for all key groups that may be written, ascending: what is found is held for one of them at a time.

        Args:
            written: It is in the epoch's transaction anyway.
        """
        prefix, budget = prefix_of(key_group), self._budget
        if self.at or prefix < self._start[:GROUP_BYTES]:
            return []
        if budget.partitions <= 0 or budget.entries <= 0 or budget.bytes <= 0:
            self.at = prefix
            return []
        budget.entries -= budget.key_group
        found = self._look(key_group, max(prefix, self._start))
        if found and not written:
            budget.partitions -= 1
        return found

    def _look(self, key_group: int, start: bytes) -> list[EntryChange]:
        found: list[EntryChange] = []
        budget, expired, due, stamp_of = self._budget, self._expired, self.due, self._lives.stamp_of
        for key, entry in self._stored.items(key_group, start):
            if budget.entries <= 0 or budget.bytes <= 0:
                self.at = key
                break
            budget.entries -= 1
            budget.bytes -= len(entry)
            expires = stamp_of(entry)
            if expires == NOT_KNOWN:
                found.append((key, self._entry(self._lives.bare(entry))))
            elif expires <= expired:
                found.append((key, None))
            elif expires < due:
                due = expires
        self.due = due
        return found


def beside(written: list[EntryChange], swept: list[EntryChange]) -> list[EntryChange]:
    """An epoch's own changes of a key group and what is swept of it, ascending; a key that both have is the epoch's."""
    if not swept:
        return written
    own = {key for key, _ in written}
    return sorted([*written, *(change for change in swept if change[0] not in own)])


class StateGc:
    """What an epoch does of it in one state: passes over a part, and adds what is found to the epoch's own changes.

    Args:
        sweeper: None: nothing of the state expires.
        written: None: this epoch does not look; what it writes is passed later.
    """

    def __init__(
        self, sweeper: Sweeper | None, stored: Stored, context: CommitContext, written: Written | None
    ) -> None:
        self._sweeper = sweeper
        self._pass: GcPass | None = None
        if sweeper is not None and written is not None:
            self._pass = sweeper.begin(stored, context, written)
        elif sweeper is not None:
            sweeper.begin_anew()

    @property
    def looks(self) -> bool:
        """It is to be shown all key groups that may be written, ascending: see GcPass.of."""
        return self._pass is not None

    def with_expired(self, key_group: int, changes: list[EntryChange]) -> list[EntryChange]:
        """What is to be written to a key group: the epoch's own changes, and what has expired in it. See `beside`."""
        if self._sweeper is not None:
            self._sweeper.wrote(changes)
        if self._pass is None:
            return changes
        return beside(changes, self._pass.of(key_group, written=bool(changes)))

    def done(self) -> None:
        """The epoch is committed, with what was found."""
        if self._sweeper is not None and self._pass is not None:
            self._sweeper.done(self._pass)
