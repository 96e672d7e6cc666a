"""Whatever is in the key groups, and however little is fetched at once, it comes in the order of the keys, and once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from keyhole.encoding.storage_key import GROUP_BYTES, prefix_of
from keyhole.rpc.ordered_pages import Fetched, FetchedEntry, ordered_pages

_KEYS = st.binary(min_size=1, max_size=2)


@given(
    st.dictionaries(_KEYS, st.integers(0, 4), max_size=40),
    st.integers(1, 5),
    st.booleans(),
    st.none() | _KEYS,
    st.data(),
)
def test_all_entries_come_in_order_behind_the_place_and_nothing_is_fetched_again(
    placed: dict[bytes, int], key_groups: int, descending: bool, after: bytes | None, data: st.DataObject
) -> None:
    groups: dict[int, list[bytes]] = {group: [] for group in range(key_groups)}
    for key, group in placed.items():
        groups[group % key_groups].append(prefix_of(group % key_groups) + key)
    asked: list[bytes] = []

    async def fetch(group: int, behind: bytes, most: int) -> Fetched:
        keys = sorted(groups[group], reverse=descending)
        left = [key for key in keys if not behind or (key < behind if descending else key > behind)]
        found = left[: data.draw(st.integers(0 if not left else 1, min(3, most)))]
        asked.extend(found)
        # A server may say it with the last ones, or with nothing.
        ended = len(found) == len(left) and (not found or data.draw(st.booleans()))
        return Fetched([FetchedEntry(key, key[GROUP_BYTES:]) for key in found], ended)

    async def read() -> Sequence[bytes]:
        found: list[bytes] = []
        async for page in ordered_pages(key_groups, fetch, descending=descending, after=after or b"", limit=None):
            assert page
            found += [entry.value for entry in page]
        return found

    expected = sorted(placed, reverse=descending)
    if after:
        expected = [key for key in expected if (key < after if descending else key > after)]
    assert asyncio.run(read()) == expected
    assert len(asked) == len(set(asked))
