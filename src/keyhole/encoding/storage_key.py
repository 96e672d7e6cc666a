"""A storage key: what a store has an entry by. Two bytes of key group, big-endian, and behind them the encoded key.

    group 258, key "a"  ->  01 02 61 00 00

So the keys of a key group stand together, in the order of the groups. The codec encodes what comes behind. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

GROUP_BYTES = 2


def group_of(storage_key: bytes) -> int:
    """The key group that a storage key, or the beginning of one, belongs to."""
    # By index, which takes half of the time of a slice: proxies ask for each key.
    return storage_key[0] << 8 | storage_key[1]


def prefix_of(key_group: int) -> bytes:
    """What each storage key of the key group begins with: GROUP_BYTES bytes."""
    return key_group.to_bytes(GROUP_BYTES, "big")


def are_storage_keys(keys: Sequence[bytes], key_groups: int) -> bool:
    """Whether each has a key group that there is, and something behind it.

    Args:
        keys: At least one.
    """
    # A call in C each, of no Python for each key: a lookup's frame has hundreds.
    return min(map(len, keys)) > GROUP_BYTES and group_of(max(keys)) < key_groups
