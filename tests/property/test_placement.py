"""assign(), take_over() and assign_standbys(): their promises, over any history of servers; both ways to hash a key."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from keyhole.encoding.murmur3 import hash_bytes_in_c, hash_bytes_in_python
from keyhole.protocol.assignment import assign, assign_standbys, take_over

SERVERS = st.sets(st.sampled_from("abcdefg"), min_size=1)
GROUPS = st.integers(1, 80)


COUNTS = st.integers(0, 3)


def copies(groups: int) -> st.SearchStrategy[dict[int, tuple[str, ...]]]:
    return st.dictionaries(
        st.integers(0, groups + 3), st.lists(st.sampled_from("abcdefgxyz"), max_size=4).map(tuple), max_size=groups
    )


def owners(groups: int) -> st.SearchStrategy[dict[int, str]]:
    return st.dictionaries(st.integers(0, groups + 3), st.sampled_from("abcdefgxyz"))


@given(st.data(), SERVERS, GROUPS)
def test_every_group_has_one_owner_that_is_there_and_the_load_is_even(
    data: st.DataObject, servers: set[str], groups: int
) -> None:
    after = assign(data.draw(owners(groups)), servers, groups, data.draw(copies(groups)))
    assert set(after) == set(range(groups))
    load = Counter(dict.fromkeys(servers, 0)) + Counter(after.values())
    counts = [load[server] for server in servers]
    assert set(after.values()) <= servers
    assert max(counts) - min(counts) <= 1


@given(st.data(), SERVERS, GROUPS)
def test_no_even_assignment_moves_fewer_groups(data: st.DataObject, servers: set[str], groups: int) -> None:
    before = data.draw(owners(groups))
    after = assign(before, servers, groups, data.draw(copies(groups)))
    kept = sum(before.get(group) == owner for group, owner in after.items())
    held = sorted((sum(before.get(g) == s for g in range(groups)) for s in servers), reverse=True)
    share, larger = divmod(groups, len(servers))
    # Balance lets `larger` servers keep one more than the others: best spent on those that hold most.
    assert kept == sum(min(count, share + (rank < larger)) for rank, count in enumerate(held))


@given(st.data(), SERVERS, GROUPS)
def test_what_was_placed_is_there_the_rest_is_as_even_as_that_allows_and_no_such_assignment_moves_fewer(
    data: st.DataObject, servers: set[str], groups: int
) -> None:
    before, placed, warm = data.draw(owners(groups)), data.draw(owners(groups)), data.draw(copies(groups))
    after = assign(before, servers, groups, warm, placed)
    assert set(after) == set(range(groups))
    assert set(after.values()) <= servers
    given_to = {group: server for group, server in placed.items() if server in servers and group < groups}
    assert given_to.items() <= after.items()
    # Water poured over the loads that are given, one key group at a time into the lowest.
    loads = Counter(dict.fromkeys(servers, 0)) | Counter(given_to.values())
    filled = {server: loads[server] for server in servers}
    for _ in range(groups - len(given_to)):
        filled[min(filled, key=lambda server: filled[server])] += 1
    counts = Counter(after.values())
    assert sorted(counts[server] for server in servers) == sorted(filled.values())
    level = max((filled[server] for server in servers if filled[server] > loads[server]), default=0)
    larger = sum(filled[server] == level > loads[server] for server in servers)
    held = Counter(before.get(group) for group in range(groups) if group not in given_to)
    kept = sum(before.get(group) == owner for group, owner in after.items() if group not in given_to)
    # All may keep one less than the highest share, and `larger` of those that share one more.
    least = {server: max(0, level - 1 - loads[server]) for server in servers}
    more = sum(min(larger, 1) for server in servers if held[server] > least[server] and loads[server] < level)
    assert kept == sum(min(held[server], least[server]) for server in servers) + min(larger, more)
    assert assign(after, servers, groups, warm, placed) == after


@given(st.data(), SERVERS, GROUPS)
def test_it_is_deterministic_and_settles_at_once(data: st.DataObject, servers: set[str], groups: int) -> None:
    before, warm = data.draw(owners(groups)), data.draw(copies(groups))
    after = assign(before, sorted(servers), groups, warm)
    backwards = dict(sorted(warm.items(), reverse=True))
    assert assign(dict(sorted(before.items(), reverse=True)), sorted(servers, reverse=True), groups, backwards) == after
    assert assign(after, servers, groups, warm) == after


@given(st.data(), SERVERS, GROUPS)
def test_what_moves_goes_to_a_server_that_has_a_copy_unless_it_has_its_share(
    data: st.DataObject, servers: set[str], groups: int
) -> None:
    before, warm = data.draw(owners(groups)), data.draw(copies(groups))
    after = assign(before, servers, groups, warm)
    load = Counter(after.values())
    for group, owner in after.items():
        able = servers & set(warm.get(group, ()))
        if owner != before.get(group) and able and owner not in able:
            assert all(load[name] >= groups // len(servers) for name in able)


@given(st.data(), SERVERS, GROUPS)
def test_a_take_over_moves_only_what_has_no_owner_and_to_the_best_that_there_is(
    data: st.DataObject, servers: set[str], groups: int
) -> None:
    staying, warm, known = data.draw(owners(groups)), data.draw(copies(groups)), data.draw(copies(groups))
    after = take_over(staying, servers, groups, [warm, known])
    assert set(after) == set(range(groups))
    for group, owner in after.items():
        if group in staying:
            assert owner == staying[group]
        else:
            best = [servers & set(of.get(group, ())) for of in (warm, known)]
            assert owner in next(filter(None, best), servers)
    assert take_over(dict(sorted(staying.items(), reverse=True)), sorted(servers), groups, [warm, known]) == after


@given(SERVERS, GROUPS)
def test_where_nobody_owns_anything_a_take_over_is_even(servers: set[str], groups: int) -> None:
    load = Counter(take_over({}, servers, groups).values())
    assert max(load[name] for name in servers) - min(load[name] for name in servers) <= 1


@given(st.data(), SERVERS, GROUPS, COUNTS)
def test_standbys_are_as_many_as_asked_for_on_other_servers_than_the_owner(
    data: st.DataObject, servers: set[str], groups: int, count: int
) -> None:
    held = assign(data.draw(owners(groups)), servers, groups)
    standbys = assign_standbys(held, data.draw(copies(groups)), servers, count)
    assert set(standbys) == set(held)
    for group, of in standbys.items():
        assert len(of) == len(set(of)) == min(count, len(servers) - 1)
        assert set(of) <= servers - {held[group]}


@given(st.data(), SERVERS, GROUPS, COUNTS)
def test_no_standby_could_go_to_a_server_that_follows_two_key_groups_less(
    data: st.DataObject, servers: set[str], groups: int, count: int
) -> None:
    held = data.draw(st.fixed_dictionaries({group: st.sampled_from("abcdefgxyz") for group in range(groups)}))
    standbys = assign_standbys(held, data.draw(copies(groups)), servers, count)
    load = Counter(name for of in standbys.values() for name in of)
    for group, of in standbys.items():
        for other in servers - {held[group], *of}:
            assert all(load[name] <= load[other] + 1 for name in of)


@given(st.data(), SERVERS, GROUPS, COUNTS)
def test_standbys_stay_and_do_not_depend_on_the_order_of_what_is_told(
    data: st.DataObject, servers: set[str], groups: int, count: int
) -> None:
    held, before = assign(data.draw(owners(groups)), servers, groups), data.draw(copies(groups))
    standbys = assign_standbys(held, before, servers, count)
    assert assign_standbys(held, standbys, servers, count) == standbys
    more = {group: (*of, "a", "b") for group, of in standbys.items()}
    assert assign_standbys(held, more, servers, count) == standbys, "the first stay"
    backwards = dict(sorted(held.items(), reverse=True))
    assert assign_standbys(backwards, before, sorted(servers, reverse=True), count) == standbys


@given(st.binary(max_size=80), st.integers(0, 0xFFFF_FFFF))
def test_a_key_has_the_same_hash_in_c_and_in_python(data: bytes, seed: int) -> None:
    assert hash_bytes_in_c(data, seed) == hash_bytes_in_python(data, seed)
