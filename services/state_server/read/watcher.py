"""One who watches a state, and what waits for it: changes of epochs, in the order in which they came."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import functools
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from keyhole.errors import TooSlow
from keyhole.model.epoch import Position
from keyhole.model.state import StateDescriptor
from keyhole.rpc.watch_requests import Watched, WatchedRange
from services.state_server.read.watch_messages import Sent

MOST_BYTES = 16 << 20
"""Keys and rows of one state that are kept: of its last epochs, and for one watcher that is behind."""

# What an entry takes in memory beside its key and row.
_OVERHEAD = 150


class Changed(NamedTuple):
    """One change within an epoch.

    Attributes:
        number: Among all changes of the epoch in its key group, in the order of the changelog.
        entry: As stored; None: deleted.
        before: The entry before; None: there was none.
    """

    number: int
    key: bytes
    entry: bytes | None
    before: bytes | None


@dataclass
class GroupEpoch:
    """What one epoch has changed in one key group. Only `recent` changes.

    Attributes:
        before: The changelog's offset where the epoch begins, or a later one than the position before.
        after: The position behind it.
        changes: (storage key, entry or None), in the order of the changelog. None: too much to be kept.
        befores: The entry before each change; None: nobody has asked.
        size: About what it takes in memory.
        recent: What is made of it for one who watches is kept for others.
    """

    key_group: int
    before: int
    after: Position
    changes: Sequence[tuple[bytes, bytes | None]] | None
    befores: Sequence[bytes | None] | None = None
    size: int = 0
    recent: bool = True

    def let_made_go(self) -> None:
        """Newer epochs have come: nearly all who watch have this one. What was made of it takes more than itself."""
        self.recent = False
        self.shared.clear()
        self.selected.clear()

    @functools.cached_property
    def index(self) -> Mapping[bytes, int]:
        """By storage key, which of the changes is its. Made when somebody comes back to it."""
        assert self.changes is not None
        return {key: index for index, (key, _) in enumerate(self.changes)}

    @functools.cached_property
    def _by_key(self) -> tuple[Sequence[bytes], Sequence[int]]:
        """The storage keys, ascending, and which change is of each. Made where many ranges are watched."""
        assert self.changes is not None
        order = sorted(range(len(self.changes)), key=[key for key, _ in self.changes].__getitem__)
        return [self.changes[number][0] for number in order], order

    @functools.cached_property
    def selected(self) -> dict[Hashable, array[int]]:
        """What watches keep of their predicates' work for others that have the same one."""
        return {}

    @functools.cached_property
    def shared(self) -> dict[Hashable, Sent]:
        """What all are sent of it who watch all of it, and alike."""
        return {}

    def within(self, start: bytes, stop: bytes | None, *, of_many: bool = False) -> Sequence[int]:
        """Which changes are of storage keys from `start` on, up to `stop`, ascending.

        Args:
            of_many: It is one of many ranges, for which the keys are worth sorting, once.
        """
        if not of_many:
            assert self.changes is not None
            return [
                number for number, (key, _) in enumerate(self.changes) if key >= start and (stop is None or key < stop)
            ]
        keys, order = self._by_key
        first = bisect.bisect_left(keys, start)
        last = len(keys) if stop is None else bisect.bisect_left(keys, stop)
        return sorted(order[first:last])

    def at(self, number: int) -> Changed:
        """The change of that number, with what was there before."""
        assert self.changes is not None
        key, entry = self.changes[number]
        return Changed(number, key, entry, None if self.befores is None else self.befores[number])

    def changed(self, keys: Watched | None = None, skip: int = 0) -> Iterator[Changed]:
        """The changes of these keys, without the first `skip` of the epoch.

        Args:
            keys: None: of all.
        """
        assert self.changes is not None
        if keys is None:
            yield from map(self.at, range(skip, len(self.changes)))
        elif isinstance(keys, WatchedRange):
            yield from map(self.at, (number for number in self.within(*keys.range(self.key_group)) if number >= skip))
        elif not keys.prefixes and len(keys.exact) < len(self.changes):
            index = self.index
            yield from map(self.at, sorted(at for key in keys.exact if (at := index.get(key, -1)) >= skip))
        else:
            for at in range(skip, len(self.changes)):
                if keys.has(self.changes[at][0]):
                    yield self.at(at)


class History(Protocol):
    """Reads back from the changelog what was committed."""

    def epochs(
        self, descriptor: StateDescriptor, marks: Mapping[int, int], ends: Mapping[int, int]
    ) -> AsyncGenerator[GroupEpoch]:
        """Whole epochs of these key groups between the offsets, each group's in their order. Close it.

        Raises:
            KafkaUnreachable, ChangelogRecreated: It can't be read.
        """


def size_of(changes: Iterable[tuple[bytes, bytes | None]]) -> int:
    """About what these changes take in memory."""
    return sum(len(key) + len(entry or b"") + _OVERHEAD for key, entry in changes)


class Pending(NamedTuple):
    """What a watcher is to be sent of one epoch and key group.

    Attributes:
        known: Whether the entries before are known.
    """

    key_group: int
    before: int
    after: Position
    changes: Iterable[Changed]
    known: bool
    size: int

    @classmethod
    def of(cls, epoch: GroupEpoch, keys: Watched | None, skip: int = 0) -> Pending:
        """Of one epoch: holds on to all of it only where all of it is watched."""
        if keys is None:
            known = epoch.befores is not None
            return cls(epoch.key_group, epoch.before, epoch.after, RestOfEpoch(epoch, skip), known, epoch.size)
        return cls.of_changes(epoch, list(epoch.changed(keys, skip)))

    @classmethod
    def of_changes(cls, epoch: GroupEpoch, changes: Sequence[Changed], *, unsure: bool = False) -> Pending:
        """Some changes of one epoch.

        Args:
            unsure: What was there before is not what the watcher's reader has.
        """
        known = epoch.befores is not None and not unsure
        return cls(epoch.key_group, epoch.before, epoch.after, changes, known, _size(changes))


def _size(changes: Iterable[Changed]) -> int:
    return sum(len(of.key) + len(of.entry or b"") + len(of.before or b"") + _OVERHEAD for of in changes)


class RestOfEpoch:
    """The changes of an epoch behind the first ones, each time that they are asked for.

    Attributes:
        skip: How many are the first ones.
    """

    def __init__(self, epoch: GroupEpoch, skip: int) -> None:
        self.epoch = epoch
        self.skip = skip

    def __iter__(self) -> Iterator[Changed]:
        return self.epoch.changed(None, self.skip)


class Watcher:
    """One who watches, and what has come for it. Event loop.

    Args:
        keys: None: all.
        key_groups: Of these alone.
        latest_only: Where too much has come, of each key the last change stays.
        unsure: Its reader may lack changes before its marks: later ones had replaced them, and have yet to come.
        most_bytes: That may wait for it.

    Attributes:
        unsure: See above; not of what is committed once it has been attached.
        lost: Behind what is pending, changes have come that are not in memory.
        error: Why it is let go, once what is pending was taken.
    """

    def __init__(
        self,
        keys: Watched | None,
        key_groups: frozenset[int],
        *,
        befores: bool = False,
        latest_only: bool = False,
        unsure: bool = False,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.keys = keys
        self.key_groups = key_groups
        self.befores = befores
        self.unsure = unsure
        self.lost = False
        self.error: TooSlow | None = None
        self._latest_only = latest_only
        self._most_bytes = most_bytes
        self._pending: deque[Pending] = deque()
        self._bytes = 0
        self._woken = asyncio.Event()

    def behind(self, epoch: GroupEpoch, skip: int) -> Pending:
        """What it is to be sent of an epoch that was published before it came."""
        keys = self.keys_in(epoch.key_group)
        if self.unsure:
            return Pending.of_changes(epoch, list(epoch.changed(keys, skip)), unsure=True)
        return Pending.of(epoch, keys, skip)

    def keys_in(self, key_group: int) -> Watched | None:
        """Its keys in one of its key groups; None: all."""
        return None if self.keys is None else self.keys.of(key_group)

    @property
    def waiting(self) -> bool:
        """Something has come that was not taken."""
        return bool(self._pending)

    def wake(self) -> None:
        """It is to look whether it can go on."""
        self._woken.set()

    def lose(self) -> None:
        """From now on changes come that are not in memory. To be woken then."""
        self.lost = True

    def give(self, pending: Pending) -> None:
        """More has come. Where that is too much, the watcher is let go. To be woken then."""
        self._pending.append(pending)
        self._bytes += pending.size
        if self._bytes > self._most_bytes and len(self._pending) > 1:
            if self._latest_only:
                self._collapse()
            if self._bytes > self._most_bytes // (2 if self._latest_only else 1):
                self._pending.clear()
                self._bytes = 0
                self.error = TooSlow(
                    f"more than {self._most_bytes >> 20} MiB of changes wait for this watch, which takes them more "
                    "slowly than they come. Go on behind its token, take changes faster, watch fewer keys, or ask for "
                    "the latest alone",
                    limit=self._most_bytes,
                )

    def _collapse(self) -> None:
        """Of each key the last change stays, in the order of the epochs, with what was there before the first."""
        last: dict[bytes, tuple[Pending, Changed, bool]] = {}
        for pending in self._pending:
            for change in pending.changes:
                # Whether it is known what was there before is up to the first change, too.
                _, first, known = last.pop(change.key, (pending, change, pending.known))
                last[change.key] = pending, change._replace(before=first.before), known
        left: dict[int, list[Changed]] = {}
        unknown = set[int]()
        for pending, change, known in last.values():
            left.setdefault(id(pending), []).append(change)
            if not known:
                unknown.add(id(pending))
        self._pending = deque(
            pending._replace(
                changes=changes,
                known=id(pending) not in unknown,
                size=_size(changes),
            )
            for pending, changes in ((pending, left.get(id(pending), [])) for pending in self._pending)
        )
        self._bytes = sum(pending.size for pending in self._pending)

    def take(self) -> Pending | None:
        """The next that has come; None: nothing waits."""
        if not self._pending:
            return None
        pending = self._pending.popleft()
        self._bytes -= pending.size
        return pending

    async def woken(self, seconds: float) -> None:
        """Returns once something has come, or it is to look; at most so many seconds later."""
        if not self._pending:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
        self._woken.clear()
