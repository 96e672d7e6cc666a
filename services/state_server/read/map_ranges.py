"""A range of map keys under each key of a scan: the store is asked for the next entry that can be in it, where that is
far.

    a 1  a 5  a 9  b 4  b 7     from 4, to 6:  a 1 is looked at, then the scan seeks a 4; behind a 5 it seeks b
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from keyhole.encoding.codec import EntryRange
from keyhole.encoding.key_codec import end_of_prefix
from keyhole.encoding.storage_key import GROUP_BYTES

Entries: TypeAlias = Iterator[tuple[bytes, bytes]]

_STEPS = 16
"""So many entries outside of the range are stepped over before the store is asked to seek, which takes longer."""


def entries_of_map_keys(
    items: Callable[[bytes, bytes | None], Entries],
    within: EntryRange,
    key_length: Callable[[bytes], int],
    *,
    descending: bool,
) -> Iterator[tuple[bytes, bytes | None]]:
    """The entries of a range whose map keys are those that it names, in order; None in place of others on the way.

    Args:
        items: Storage keys and entries from a first one (inclusive) to a last one (exclusive), in the scan's order.
        key_length: How many bytes of an encoded key, behind the key group, come before the map key.
    """
    start, stop = within.start, within.stop
    first, last = within.map_keys
    while True:
        prefix, low, high, stepped = b"", b"", None, 0
        seek: bytes | None = None
        for key, entry in items(start, stop):
            if not prefix or not key.startswith(prefix):
                # No encoded key begins as another one does.
                prefix = key[: GROUP_BYTES + key_length(key[GROUP_BYTES:])]
                low, high = prefix + first, prefix + last if last else None
            below, above = key < low, high is not None and key >= high
            if not below and not above:
                stepped = 0
                yield key, entry
                continue
            # So that whoever counts what is looked at knows of it.
            yield key, None
            stepped += 1
            if stepped <= _STEPS:
                continue
            behind, ahead = (high, prefix) if descending else (end_of_prefix(prefix), low)
            seek = behind if above else ahead
            break
        else:
            return
        if seek is None or (seek <= start if descending else stop is not None and seek >= stop):
            return
        start, stop = (start, seek) if descending else (seek, stop)
