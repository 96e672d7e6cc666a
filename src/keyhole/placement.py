"""Which key group a key is in, and which server owns a key group. Pure.

The hash is Spark's own (`org.apache.spark.unsafe.hash.Murmur3_x86_32`, seed 42), so that a stream which Spark has
already grouped by the key needs no second shuffle. It is murmur3 but for the last 1 to 3 bytes of strings: Spark mixes
each of them in as a whole, sign-extended word. vectors/ holds values that Spark computed, for this and other languages.
"""

from __future__ import annotations

import functools
import struct
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from typing import Any

from keyhole.errors import NullKey
from keyhole.types import KeyType

SEED = 42

_MASK = 0xFFFF_FFFF
_C1, _C2 = 0xCC9E2D51, 0x1B873593
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)


def _scrambled(word: int) -> int:
    word = word * _C1 & _MASK
    return (word << 15 | word >> 17) * _C2 & _MASK


def _finished(h: int, length: int) -> int:
    h ^= length
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    return h ^ h >> 16


# What a byte of the tail contributes, sign-extended to a word.
_TAIL = tuple(_scrambled(byte if byte < 0x80 else byte | 0xFFFF_FF00) for byte in range(0x100))


@functools.cache
def _words(count: int) -> Callable[[bytes], tuple[int, ...]]:
    return struct.Struct(f"<{count}I").unpack


def hash_bytes(data: bytes, h: int = SEED) -> int:
    """Spark's hash of a string's UTF-8 bytes, or of a binary. Unsigned; `h` is the hash of the columns before."""
    length = len(data)
    whole = length & ~3
    if whole:
        # The loop is written out: a call per word would double what the hash costs.
        for word in _words(whole >> 2)(data if whole == length else data[:whole]):
            word = word * 0xCC9E2D51 & 0xFFFF_FFFF
            h ^= (word << 15 | word >> 17) * 0x1B873593 & 0xFFFF_FFFF
            h = (h << 13 | h >> 19) * 5 + 0xE6546B64 & 0xFFFF_FFFF
    for byte in data[whole:]:
        h ^= _TAIL[byte]
        h = (h << 13 | h >> 19) * 5 + 0xE6546B64 & 0xFFFF_FFFF
    return _finished(h, length)


def hash_int(value: int, h: int = SEED) -> int:
    """Spark's hash of a boolean (0 or 1), a smallint, an int or a date (days). Unsigned."""
    return _finished(_mixed(h, value & _MASK), 4)


def hash_long(value: int, h: int = SEED) -> int:
    """Spark's hash of a bigint or a timestamp (microseconds). Unsigned."""
    return _finished(_mixed(_mixed(h, value & _MASK), value >> 32 & _MASK), 8)


def _mixed(h: int, word: int) -> int:
    h ^= _scrambled(word)
    return ((h << 13 & _MASK | h >> 19) * 5 + 0xE6546B64) & _MASK


def days(value: date) -> int:
    """Days since 1970-01-01."""
    return value.toordinal() - _EPOCH_DAY


def micros(value: datetime) -> int:
    """Microseconds since 1970, UTC, of a datetime with a time zone."""
    return (value - _EPOCH) // _MICROSECOND


HASHES: Mapping[KeyType, Callable[[Any, int], int]] = {
    KeyType.STRING: lambda value, h: hash_bytes(value.encode(), h),
    KeyType.BINARY: hash_bytes,
    KeyType.BOOLEAN: hash_int,
    KeyType.SMALLINT: hash_int,
    KeyType.INT: hash_int,
    KeyType.BIGINT: hash_long,
    KeyType.DATE: lambda value, h: hash_int(days(value), h),
    KeyType.TIMESTAMP: lambda value, h: hash_long(micros(value), h),
}
"""By key type: (Python value, the hash of the columns before) -> hash, unsigned."""


def spark_hash(values: Sequence[object], types: Sequence[KeyType], seed: int = SEED) -> int:
    """What `hash(columns)` gives in Spark: a signed 32-bit integer.

    Args:
        values: One per column: str, bytes, bool, int, date, or a datetime with a time zone.

    Raises:
        NullKey: A value is None. Spark would skip it; a state has no null keys.
    """
    h = seed & _MASK
    for value, kind in zip(values, types, strict=True):
        if value is None:
            raise NullKey(f"a key column of type {kind} is null; a state has no null keys")
        h = HASHES[kind](value, h)
    return h - (h >> 31 << 32)


def key_group(values: Sequence[object], types: Sequence[KeyType], key_groups: int) -> int:
    """The key group: Spark's `pmod(hash(columns), key_groups)`. Raises as `spark_hash`."""
    return spark_hash(values, types) % key_groups


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

    Each such step makes the sum of squares of the loads smaller: they come to an end.
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
