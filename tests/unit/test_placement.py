"""Key groups are Spark's; owners are assigned as promised."""

from __future__ import annotations

import pytest

from keyhole.errors import NullKey
from keyhole.placement import assign, key_group, spark_hash
from keyhole.types import KeyType
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
