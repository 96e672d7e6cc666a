"""Rows and frozen maps: equality, pickling, awkward names."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping, Sequence

import pytest

from keyhole.encoding.row import FrozenMap, Row, row_class


def row(**fields: object) -> Row:
    return row_class((name, object) for name in fields)(*fields.values())


def test_rows_of_the_same_names_and_values_are_equal_whichever_class_they_have() -> None:
    first, second = row(a=1, b="x"), row(a=1, b="x")
    assert type(first) is not type(second)
    assert first == second
    assert hash(first) == hash(second)


@pytest.mark.parametrize("other", [row(a=2), row(b=1), row(a=1, b=1), {"a": 1}, (1,)])
def test_rows_differ_by_values_names_and_kind(other: object) -> None:
    assert row(a=1) != other


def test_a_row_can_be_sent_to_another_process_and_copied() -> None:
    original = row(a=1, inner=row(x=(1, 2)), m=FrozenMap({"k": None}))
    assert pickle.loads(pickle.dumps(original)) == original
    assert copy.deepcopy(original) == original


def test_a_field_named_as_something_of_a_row_leaves_the_row_whole() -> None:
    names = ["asdict", "_0", "_3", "__len__", "__names__"]
    value = row_class((name, int) for name in names)(*range(5))
    assert value.asdict() == dict(zip(names, range(5), strict=True))
    assert len(value) == 5


def test_a_row_is_made_a_dict_and_iterates_as_one() -> None:
    inner = row(x=1)
    value = row_class((name, object) for name in ("a", "max(t)", "keys", "inner"))(1, 2.5, None, inner)
    assert dict(value) == {"a": 1, "max(t)": 2.5, "keys": None, "inner": inner}
    assert {**value} == dict(value)
    assert tuple(value) == tuple(value.keys()) == ("a", "max(t)", "keys", "inner")
    assert "max(t)" in value
    assert dict(inner) == inner.asdict() == {"x": 1}
    assert dict(row()) == {}


def test_columns_called_as_methods_of_mappings_are_columns_and_nobody_takes_a_row_for_a_mapping() -> None:
    """docs/adr/a-row-is-read-as-a-mapping-and-is-none.md"""
    value = row(items=1, values=2, get=3, count=4, index=5)
    assert (value.items, value.values, value.get, value.count, value.index) == (1, 2, 3, 4, 5)
    assert not isinstance(value, (Mapping, Sequence))
    assert "{items} {get}".format_map(value) == "1 3"
    assert tuple(value.asdict().values()) == (1, 2, 3, 4, 5)
    match value:
        case {"items": _}:
            pytest.fail("a row was taken for a mapping")


def test_a_row_has_one_length_and_shows_its_fields() -> None:
    assert len(row(a=1, b=2)) == 2
    assert repr(row(a=1, b="x")) == "Row(a=1, b='x')"


def test_a_frozen_map_equals_any_equal_mapping_and_can_not_be_changed() -> None:
    frozen = FrozenMap([("a", 1), ("b", 2)])
    assert frozen == {"b": 2, "a": 1}
    assert hash(frozen) == hash(FrozenMap({"b": 2, "a": 1}))
    assert list(frozen) == ["a", "b"]
    with pytest.raises(TypeError):
        frozen["a"] = 2  # type: ignore[index]  # what must not work
    with pytest.raises(TypeError):
        del frozen["a"]  # type: ignore[attr-defined]  # as above
