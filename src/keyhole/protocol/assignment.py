"""Which server owns a key group, and which follow it. Pure."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

Copies = Mapping[int, Collection[str]]
"""By key group: servers that have a copy of it."""


def assign(
    previous: Mapping[int, str],
    servers: Collection[str],
    key_groups: int,
    copies: Copies = MappingProxyType({}),
    placed: Mapping[int, str] = MappingProxyType({}),
) -> dict[int, str]:
    """Which server owns which key group, evenly.

    Total (every key group has one owner), balanced (no server owns two more than another), stable (moves the fewest
    key groups that balance allows), and deterministic (equal arguments, equal result, in whatever order they come).
    What moves goes to a server that has a copy where there is room, and what has none stays where it is. A server may
    own more than its share where all of it was placed there.

    Args:
        previous: The owners before, by key group; may name servers that are gone, and lack key groups.
        servers: The servers now; at least one.
        placed: Key groups whose owners are given; may name servers that are gone, and key groups that there are not.
    """
    names = sorted(set(servers))
    held: dict[str, list[int]] = {name: [] for name in names}
    owners = {group: name for group, name in placed.items() if name in held and group < key_groups}
    given = Counter(owners.values())
    for group in range(key_groups):
        if group not in owners and (owner := previous.get(group)) in held:
            held[owner].append(group)
    # The servers that hold most get the larger shares: each key group more that they may keep is one less to move.
    by_load = sorted(names, key=lambda name: (-len(held[name]) - given[name], name))
    room = _room(by_load, given, key_groups)
    for name in names:
        kept = sorted(held[name], key=lambda group: (_elsewhere(copies, group, name), group))[: room[name]]
        owners |= dict.fromkeys(kept, name)
        room[name] -= len(kept)
    free = [group for group in range(key_groups) if group not in owners]
    for group in free:
        if able := [name for name in sorted(copies.get(group, ())) if room.get(name)]:
            owners[group] = max(able, key=lambda name: room[name])
            room[owners[group]] -= 1
    rest = (group for group in free if group not in owners)
    return owners | dict(zip(rest, (name for name in names for _ in range(room[name])), strict=True))


def _room(by_load: Sequence[str], given: Mapping[str, int], key_groups: int) -> dict[str, int]:
    """How many more each server may have than are given to it, so that all have as equally many as that allows.

    Args:
        by_load: The servers; where shares are not equal, the first ones have the larger ones.
    """
    rising = sorted(by_load, key=lambda name: given.get(name, 0))
    # Who was given more than the share of all others has enough, and the others share what is left.
    left = key_groups
    while given.get(rising[-1], 0) > left // len(rising):
        left -= given[rising.pop()]
    share, larger = divmod(left, len(rising))
    sharing = frozenset(rising)
    ranked = (name for name in by_load if name in sharing)
    shares = {name: share + (rank < larger) for rank, name in enumerate(ranked)}
    return {name: shares[name] - given.get(name, 0) if name in shares else 0 for name in by_load}


def _elsewhere(copies: Copies, group: int, owner: str) -> bool:
    return any(name != owner for name in copies.get(group, ()))


def take_over(
    staying: Mapping[int, str], servers: Collection[str], key_groups: int, preferred: Sequence[Copies] = ()
) -> dict[int, str]:
    """Who owns what after servers were lost, at once: nothing moves that has an owner still.

    Total and deterministic. What has no owner goes to the one of the first of `preferred` that owns least, and where
    there is none to the one of all servers that does.

    Args:
        staying: The owners that stay, by key group; they need not be among the servers.
        servers: Those that can take key groups over; at least one.
        preferred: Who should have a key group, the best first.
    """
    able = frozenset(servers)
    owners = {group: staying[group] for group in range(key_groups) if group in staying}
    loads = Loads(able, owners.values())
    for group in (group for group in range(key_groups) if group not in staying):
        choices = (able.intersection(of.get(group, ())) for of in preferred)
        best = next(filter(None, choices), None)
        owner = loads.least() if best is None else min(best, key=loads.rank)
        assert owner is not None  # there is at least one server
        owners[group] = owner
        loads.add(owner)
    return owners


def assign_standbys(
    owners: Mapping[int, str], previous: Mapping[int, Sequence[str]], servers: Collection[str], count: int
) -> dict[int, tuple[str, ...]]:
    """Which servers follow which key group.

    Every key group has `count` distinct servers beside its owner, or all others where there are fewer. Balanced (no
    copy could go to a server that follows two key groups less), stable (only what is lost, its owner's, or needed for
    balance moves) and deterministic.

    Args:
        owners: By key group.
        previous: The standbys before, by key group; of too many the first stay.
        servers: Those that may follow. Owners need not be among them.
    """
    able = frozenset(servers)
    chosen = {
        group: list(dict.fromkeys(s for s in previous.get(group, ()) if s in able and s != owner))[:count]
        for group, owner in sorted(owners.items())
    }
    loads = Loads(able, (name for of in chosen.values() for name in of))
    for group, of in chosen.items():
        while len(of) < count and (least := loads.least({owners[group], *of})) is not None:
            of.append(least)
            loads.add(least)
    moving = True
    while moving:
        moved = [_evened(of, owners[group], loads) for group, of in chosen.items()]
        moving = any(moved)
    return {group: tuple(of) for group, of in chosen.items()}


def _evened(of: list[str], owner: str, loads: Loads) -> bool:
    """Moves the copy of the server that follows most to the one that follows least, if that makes it more even.

    Each step makes the sum of squares of the loads smaller: they come to an end.
    """
    least = loads.least({owner, *of}) if of else None
    if least is None:
        return False
    most = max(of, key=loads.rank)
    if loads.rank(most)[0] < loads.rank(least)[0] + 2:
        return False
    of[of.index(most)] = least
    loads.add(most, -1)
    loads.add(least)
    return True


class Loads:
    """How many key groups each server has; the one that has least is found without looking at all of them.

    Each change leaves an entry behind that is no longer right, and is dropped once it is met. So a question takes the
    logarithm of the number of servers, beside the few that it leaves out.

    Args:
        servers: Those that can be asked for.
        held: A server for each key group that one has; it need not be among them.
    """

    def __init__(self, servers: Collection[str], held: Iterable[str]) -> None:
        self._servers = servers
        self._load = Counter(held)
        self._heap = [self.rank(name) for name in servers]
        heapq.heapify(self._heap)

    def rank(self, server: str) -> tuple[int, str]:
        """Its load, and its name where loads are equal: the least first."""
        return self._load[server], server

    def add(self, server: str, key_groups: int = 1) -> None:
        """It has so many more."""
        self._load[server] += key_groups
        if server in self._servers:
            heapq.heappush(self._heap, self.rank(server))

    def least(self, but: Collection[str] = ()) -> str | None:
        """The server that comes first by `rank`, and isn't one of `but`; None: there is no other."""
        passed: list[tuple[int, str]] = []
        found = None
        while self._heap and found is None:
            entry = self._heap[0]
            if entry != self.rank(entry[1]):
                heapq.heappop(self._heap)
            elif entry[1] in but:
                passed.append(heapq.heappop(self._heap))
            else:
                found = entry[1]
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return found
