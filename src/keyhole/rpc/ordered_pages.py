"""The entries of all key groups in one order: of each some are fetched ahead, and what nothing can precede is given.

group 0: a d g        given: a b c d; then more of group 1 is fetched, which may have what stands before e
group 1: b c d
group 2: e f
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from keyhole.encoding.storage_key import GROUP_BYTES, prefix_of
from keyhole.rpc.scan_requests import CALLS_AT_A_TIME

ENOUGH_BYTES = 256 << 10
"""Rows may be large: so much a `fetch` fetches ahead of a key group, and no more than a page beside."""

_LEAST_AHEAD, _MOST_AHEAD, _ALL_AHEAD = 16, 1_024, 32_768


class FetchedEntry(NamedTuple):
    """One entry: its storage key, and whatever else is known of it."""

    key: bytes
    value: Any


class Fetched(NamedTuple):
    """The next entries of a key group. `ended`: there are no more of it."""

    entries: Sequence[FetchedEntry]
    ended: bool


Fetch = Callable[[int, bytes, int], Awaitable[Fetched]]
"""Key group, storage key to go on behind (empty: none), and the most entries -> the next ones of that key group."""


async def ordered_pages(
    key_groups: int, fetch: Fetch, *, descending: bool, after: bytes, limit: int | None
) -> AsyncGenerator[list[FetchedEntry]]:
    """All entries in the order of their keys, some at a time; never none.

    Holds up to about 32,768, or 16 of each key group, and no more of one than are wanted of all.

    Args:
        after: A storage key without its key group, behind which to go on; empty: from the start.
        limit: How many are wanted; None: all.
    """
    # Of no key group are more needed than are wanted of all.
    wanted = limit or _MOST_AHEAD
    ahead = max(min(_LEAST_AHEAD, wanted), min(_MOST_AHEAD, _ALL_AHEAD // key_groups, wanted))
    waiting: dict[int, Sequence[FetchedEntry]] = dict.fromkeys(range(key_groups), ())
    places = {group: prefix_of(group) + after if after else b"" for group in range(key_groups)}
    open_groups = set(waiting)

    async def refill(groups: list[int]) -> None:
        fetches = [asyncio.ensure_future(fetch(group, places[group], ahead)) for group in groups]
        try:
            fetched = await asyncio.gather(*fetches)
        finally:
            for one in fetches:
                one.cancel()
            await asyncio.gather(*fetches, return_exceptions=True)
        for found, group in zip(fetched, groups, strict=True):
            waiting[group] = found.entries
            if found.entries:
                places[group] = found.entries[-1].key
            if found.ended:
                open_groups.discard(group)

    while True:
        while empty := [group for group in sorted(open_groups) if not waiting[group]]:
            for at in range(0, len(empty), CALLS_AT_A_TIME):
                await refill(empty[at : at + CALLS_AT_A_TIME])
        pick = max if descending else min
        # Of a group that is open more may come, but nothing before its last entry here.
        safe = pick((waiting[group][-1].key[GROUP_BYTES:] for group in open_groups), default=None)
        given: list[FetchedEntry] = []
        for group, entries in waiting.items():
            count = len(entries) if safe is None else _not_behind(entries, safe, descending=descending)
            given += entries[:count]
            waiting[group] = entries[count:]
        if not given:
            return
        given.sort(key=lambda entry: entry.key[GROUP_BYTES:], reverse=descending)
        yield given


def _not_behind(entries: Sequence[FetchedEntry], last: bytes, *, descending: bool) -> int:
    """How many of them, which are in order, do not stand behind it."""

    def is_behind(entry: FetchedEntry) -> bool:
        key = entry.key[GROUP_BYTES:]
        return key < last if descending else key > last

    return bisect_left(entries, True, key=is_behind)
