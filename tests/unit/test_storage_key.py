"""Where the key group stands in a storage key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.encoding.storage_key import GROUP_BYTES, are_storage_keys, group_of, prefix_of

pytestmark = pytest.mark.core


@given(st.integers(0, 65_535), st.binary(max_size=3))
def test_a_key_belongs_to_the_group_that_it_begins_with(group: int, rest: bytes) -> None:
    assert group_of(prefix_of(group) + rest) == group
    assert len(prefix_of(group)) == GROUP_BYTES


@given(st.lists(st.integers(0, 65_535), min_size=2))
def test_keys_are_sorted_by_their_groups(groups: list[int]) -> None:
    assert [group_of(key) for key in sorted(map(prefix_of, groups))] == sorted(groups)


@given(st.lists(st.binary(max_size=4), min_size=1), st.integers(1, 65_536))
def test_what_is_too_short_or_of_a_group_that_there_is_not_is_no_storage_key(keys: list[bytes], groups: int) -> None:
    valid = all(len(key) > 2 and int.from_bytes(key[:2], "big") < groups for key in keys)
    assert are_storage_keys(keys, groups) is valid
