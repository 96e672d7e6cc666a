"""Key groups are Spark's; owners are assigned as promised."""

from __future__ import annotations

import pytest

from keyhole.encoding.murmur3 import key_group, spark_hash
from keyhole.errors import NullKey
from keyhole.model.state import KeyType
from keyhole.protocol.assignment import assign, assign_standbys, take_over
from tests.support.vectors import golden_vectors

VECTORS = golden_vectors()


def test_the_vectors_cover_every_key_type_and_all_string_lengths_to_64() -> None:
    assert {kind for vector in VECTORS for kind in vector.types} == set(KeyType)
    lengths = {len(vector.values[0]) for vector in VECTORS if vector.types == [KeyType.STRING]}
    assert lengths >= set(range(65))


def test_every_hash_is_sparks() -> None:
    assert [spark_hash(v.values, v.types) for v in VECTORS] == [v.hash for v in VECTORS]


def test_every_key_group_is_sparks() -> None:
    for vector in VECTORS:
        for number, group in vector.key_groups.items():
            assert key_group(vector.values, vector.types, number) == group


def test_a_null_is_refused_where_spark_would_skip_it() -> None:
    with pytest.raises(NullKey, match="int"):
        spark_hash(["a", None], [KeyType.STRING, KeyType.INT])


def test_one_server_owns_everything() -> None:
    assert assign({}, ["a"], 4) == dict.fromkeys(range(4), "a")


def test_a_lost_servers_groups_go_to_the_others_and_no_other_moves() -> None:
    before = assign({}, ["a", "b", "c"], 9)
    after = assign(before, ["a", "b"], 9)
    assert all(after[group] == owner for group, owner in before.items() if owner != "c")
    assert sorted(list(after.values()).count(name) for name in "ab") == [4, 5]


def test_more_servers_than_groups_leave_some_without() -> None:
    owners = assign({}, ["a", "b", "c"], 2)
    assert len(set(owners.values())) == 2


def test_a_server_that_is_named_twice_counts_once() -> None:
    assert assign({}, ["a", "b", "a"], 8) == assign({}, ["a", "b"], 8)


def test_a_lost_servers_groups_go_to_their_standbys_first() -> None:
    before = assign({}, ["a", "b", "c"], 6)
    lost = [group for group, owner in before.items() if owner == "c"]
    after = assign(before, ["a", "b"], 6, {lost[0]: ("b",), lost[1]: ("a", "c")})
    assert (after[lost[0]], after[lost[1]]) == ("b", "a")


def test_a_server_gives_away_what_has_a_copy_elsewhere() -> None:
    after = assign(dict.fromkeys(range(4), "a"), ["a", "b"], 4, {0: ("b",), 3: ("b",)})
    assert after == {0: "b", 1: "a", 2: "a", 3: "b"}


def test_who_takes_over_is_who_has_a_copy_even_where_it_owns_more_then() -> None:
    assert take_over({2: "b", 3: "c"}, ["b", "c"], 4, [{0: ("b",), 1: ("b",)}]) == {0: "b", 1: "b", 2: "b", 3: "c"}


def test_what_nobody_has_a_copy_of_goes_to_whoever_owns_least() -> None:
    assert take_over({0: "a", 1: "a"}, ["a", "b"], 3) == {0: "a", 1: "a", 2: "b"}


def test_with_two_servers_each_follows_what_the_other_owns() -> None:
    owners = assign({}, ["a", "b"], 4)
    other = {"a": ("b",), "b": ("a",)}
    assert assign_standbys(owners, {}, ["a", "b"], 3) == {group: other[owner] for group, owner in owners.items()}


def test_one_server_has_no_standbys() -> None:
    assert assign_standbys({0: "a"}, {}, ["a"], 1) == {0: ()}


def test_the_standbys_of_a_server_that_goes_are_spread_over_the_others_and_the_rest_stays() -> None:
    owners = dict.fromkeys(range(6), "a")
    before = assign_standbys(owners, {}, ["a", "b", "c", "d"], 1)
    after = assign_standbys(owners, before, ["a", "b", "c"], 1)
    assert all(after[group] == of for group, of in before.items() if of != ("d",))
    assert sorted([of[0] for of in after.values()].count(name) for name in "bc") == [3, 3]
