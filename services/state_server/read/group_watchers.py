"""Who watches one key group: those whom a change concerns are found by its key, however many others there are."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from collections.abc import Set as AbstractSet
from typing import TypeVar

from keyhole.rpc.watch_requests import WatchedRange
from services.state_server.read.watcher import Changed, GroupEpoch, Pending, Watcher

_Place = TypeVar("_Place", bound=Hashable)
# For so many it takes less to look at all changes for each than to sort them.
_FEW_RANGES = 8
_NOBODY: AbstractSet[Watcher] = frozenset()


class GroupWatchers:
    """See the module's text. Event loop.

    Attributes:
        all: Those who watch the key group.
    """

    def __init__(self, key_group: int) -> None:
        self.all: set[Watcher] = set()
        self._key_group = key_group
        self._of_all_keys: set[Watcher] = set()
        self._by_key: dict[bytes, set[Watcher]] = {}
        # By how many bytes the prefixes take.
        self._by_prefix: dict[int, dict[bytes, set[Watcher]]] = {}
        self._by_range: dict[WatchedRange, set[Watcher]] = {}

    def add(self, watcher: Watcher) -> None:
        """It watches from now on. Takes as long as it names keys."""
        self.all.add(watcher)
        if watcher.keys is None:
            self._of_all_keys.add(watcher)
            return
        keys = watcher.keys.of(self._key_group)
        if isinstance(keys, WatchedRange):
            self._by_range.setdefault(keys, set()).add(watcher)
            return
        for key in keys.exact:
            self._by_key.setdefault(key, set()).add(watcher)
        for prefix in keys.prefixes:
            self._by_prefix.setdefault(len(prefix), {}).setdefault(prefix, set()).add(watcher)

    def remove(self, watcher: Watcher) -> None:
        """It watches no more, of those who were added."""
        self.all.remove(watcher)
        if watcher.keys is None:
            self._of_all_keys.remove(watcher)
            return
        keys = watcher.keys.of(self._key_group)
        if isinstance(keys, WatchedRange):
            _take_out(self._by_range, keys, watcher)
            return
        for key in keys.exact:
            _take_out(self._by_key, key, watcher)
        for prefix in keys.prefixes:
            of_length = self._by_prefix[len(prefix)]
            _take_out(of_length, prefix, watcher)
            if not of_length:
                del self._by_prefix[len(prefix)]

    def given(self, epoch: GroupEpoch) -> Iterator[tuple[Watcher, Pending]]:
        """Whom the epoch concerns, and what each of them gets. They may come and go meanwhile.

        Its changes are looked at once, whoever watches.
        """
        of_all_keys, found, of_ranges = list(self._of_all_keys), self._found(epoch), self._in_ranges(epoch)
        whole = Pending.of(epoch, None)
        for watcher in of_all_keys:
            yield watcher, whole
        for watcher, changes in found.items():
            yield watcher, Pending.of_changes(epoch, changes)
        for watcher, pending in of_ranges:
            yield watcher, pending

    def _in_ranges(self, epoch: GroupEpoch) -> list[tuple[Watcher, Pending]]:
        """Each range is sought once, whoever watches it."""
        given: list[tuple[Watcher, Pending]] = []
        of_many = len(self._by_range) > _FEW_RANGES
        for within, watchers in self._by_range.items():
            if numbers := epoch.within(*within.range(self._key_group), of_many=of_many):
                pending = Pending.of_changes(epoch, list(map(epoch.at, numbers)))
                given += [(watcher, pending) for watcher in watchers]
        return given

    def _found(self, epoch: GroupEpoch) -> dict[Watcher, list[Changed]]:
        found: dict[Watcher, list[Changed]] = {}
        if not self._by_key and not self._by_prefix:
            return found
        assert epoch.changes is not None
        by_key, by_prefix = self._by_key, list(self._by_prefix.items())
        for number, (key, _) in enumerate(epoch.changes):
            concerned: AbstractSet[Watcher] = by_key.get(key, _NOBODY)
            for length, of_length in by_prefix:
                if more := of_length.get(key[:length]):
                    concerned = concerned | more if concerned else more
            if concerned:
                change = epoch.at(number)
                for watcher in concerned:
                    found.setdefault(watcher, []).append(change)
        return found


def _take_out(places: dict[_Place, set[Watcher]], key: _Place, watcher: Watcher) -> None:
    there = places[key]
    there.discard(watcher)
    if not there:
        del places[key]
