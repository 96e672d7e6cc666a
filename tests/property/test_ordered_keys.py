"""Keys that are kept in order are a sorted list, whatever is added, and what was there before stays as it was."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.stores.ordered_keys import OrderedKeys

NUMBERS = st.integers(0, 400)
# Few keys at a time go into their runs; many are sorted with the others.
ADDED = st.lists(st.one_of(st.sets(NUMBERS, max_size=3), st.sets(NUMBERS, min_size=50)), max_size=25)


def key(number: int) -> bytes:
    return b"k%05d" % number


def check(keys: OrderedKeys, model: set[int], start: int, stop: int) -> None:
    ascending = [key(number) for number in sorted(model)]
    assert list(keys) == ascending
    for end in (None, key(stop)):
        within = [one for one in ascending if one >= key(start) and (end is None or one < end)]
        assert list(keys.between(key(start), end)) == within
        assert list(keys.between(key(start), end, descending=True)) == within[::-1]


@settings(deadline=None)
@given(first=st.sets(NUMBERS), added=ADDED, bounds=st.tuples(NUMBERS, NUMBERS))
def test_keys_in_order_are_a_sorted_list(first: set[int], added: list[set[int]], bounds: tuple[int, int]) -> None:
    model = set(first)
    keys = OrderedKeys(sorted(map(key, model)))
    versions = [(keys, set(model))]
    for numbers in added:
        new = numbers - model
        model |= new
        keys = keys.added(sorted(map(key, new)))
        versions.append((keys, set(model)))
    for version, numbers in versions:
        check(version, numbers, *bounds)


def test_keys_that_come_one_by_one_are_in_order_from_either_side() -> None:
    for numbers in (range(1_000), range(999, -1, -1)):
        keys = OrderedKeys()
        for number in numbers:
            keys = keys.added([key(number)])
        assert list(keys) == [key(number) for number in range(1_000)]
