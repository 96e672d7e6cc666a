"""Which server owns a key group, and which follow it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

Copies = Mapping[int, Collection[str]]
"""By key group: servers that have a copy of it."""


def assign(
    previous: Mapping[int, str], servers: Collection[str], key_groups: int, copies: Copies = MappingProxyType({})
) -> dict[int, str]:
    """Which server owns which key group, evenly.

    Total (every key group has one owner), balanced (no server owns two more than another), stable (moves the fewest
    key groups that balance allows), and deterministic (equal arguments, equal result, in whatever order they come).
    What moves goes to a server that has a copy where there is room, and what has none stays where it is.

    Args:
        previous: The owners before, by key group; may name servers that are gone, and lack key groups.
        servers: The servers now; at least one.
    """
    names = sorted(set(servers))
    held: dict[str, list[int]] = {name: [] for name in names}
    for group in range(key_groups):
        if (owner := previous.get(group)) in held:
            held[owner].append(group)
    share, larger = divmod(key_groups, len(names))
    # The servers that hold most get the larger shares: each key group more that they may keep is one less to move.
    by_load = sorted(names, key=lambda name: (-len(held[name]), name))
    room = {name: share + (rank < larger) for rank, name in enumerate(by_load)}
    owners: dict[int, str] = {}
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
    names = sorted(set(servers))
    owners = {group: staying[group] for group in range(key_groups) if group in staying}
    load = Counter(owners.values())
    for group in (group for group in range(key_groups) if group not in staying):
        choices = ([name for name in names if name in of.get(group, ())] for of in preferred)
        able = next(filter(None, choices), names)
        owners[group] = min(able, key=lambda name: (load[name], name))
        load[owners[group]] += 1
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
    names = sorted(set(servers))
    chosen = {
        group: list(dict.fromkeys(s for s in previous.get(group, ()) if s in names and s != owner))[:count]
        for group, owner in sorted(owners.items())
    }
    load = Counter(name for of in chosen.values() for name in of)
    for group, of in chosen.items():
        while len(of) < count and (able := _able(names, of, owners[group])):
            of.append(min(able, key=lambda name: (load[name], name)))
            load[of[-1]] += 1
    moving = True
    while moving:
        moved = [_evened(of, _able(names, of, owners[group]), load) for group, of in chosen.items()]
        moving = any(moved)
    return {group: tuple(of) for group, of in chosen.items()}


def _able(names: Sequence[str], of: Sequence[str], owner: str) -> list[str]:
    """Who could follow a key group beside those that do."""
    return [name for name in names if name != owner and name not in of]


def _evened(of: list[str], able: Sequence[str], load: Counter[str]) -> bool:
    """Moves the copy of the server that follows most to the one that follows least, if that makes it more even.

    Each step makes the sum of squares of the loads smaller: they come to an end.
    """
    if not of or not able:
        return False
    most, least = max(of, key=lambda name: (load[name], name)), min(able, key=lambda name: (load[name], name))
    if load[most] < load[least] + 2:
        return False
    of[of.index(most)] = least
    load.subtract([most])
    load[least] += 1
    return True
