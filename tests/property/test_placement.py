"""assign(): its promises, over any history of servers."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from keyhole.placement import assign

SERVERS = st.sets(st.sampled_from("abcdefg"), min_size=1)
GROUPS = st.integers(1, 80)


def owners(groups: int) -> st.SearchStrategy[dict[int, str]]:
    return st.dictionaries(st.integers(0, groups + 3), st.sampled_from("abcdefgxyz"))


@given(st.data(), SERVERS, GROUPS)
def test_every_group_has_one_owner_that_is_there_and_the_load_is_even(
    data: st.DataObject, servers: set[str], groups: int
) -> None:
    after = assign(data.draw(owners(groups)), servers, groups)
    assert set(after) == set(range(groups))
    load = Counter(dict.fromkeys(servers, 0)) + Counter(after.values())
    counts = [load[server] for server in servers]
    assert set(after.values()) <= servers
    assert max(counts) - min(counts) <= 1


@given(st.data(), SERVERS, GROUPS)
def test_no_even_assignment_moves_fewer_groups(data: st.DataObject, servers: set[str], groups: int) -> None:
    before = data.draw(owners(groups))
    after = assign(before, servers, groups)
    kept = sum(before.get(group) == owner for group, owner in after.items())
    held = sorted((sum(before.get(g) == s for g in range(groups)) for s in servers), reverse=True)
    share, larger = divmod(groups, len(servers))
    # Balance lets `larger` servers keep one more than the others: best spent on those that hold most.
    assert kept == sum(min(count, share + (rank < larger)) for rank, count in enumerate(held))


@given(st.data(), SERVERS, GROUPS)
def test_it_is_deterministic_and_settles_at_once(data: st.DataObject, servers: set[str], groups: int) -> None:
    before = data.draw(owners(groups))
    after = assign(before, sorted(servers), groups)
    assert assign(dict(sorted(before.items(), reverse=True)), sorted(servers, reverse=True), groups) == after
    assert assign(after, servers, groups) == after
