"""The storage keys of updates that are remembered are those that are made."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.errors import KeyholeError
from keyhole.model.state import KeyColumn, KeyType, StateKind
from services.state_server.write.update_keys import UpdateKeys
from tests.support.readings import descriptor

_COLUMNS = [KeyType.STRING, KeyType.BIGINT, KeyType.BOOLEAN, KeyType.DATE, KeyType.BINARY]
# Of these many are equal to Python: 1, 1.0 and true.
_PARTS = st.sampled_from(
    [0, 1, 1.0, True, False, None, "1", "a", "", "YQ==", "2026-11-27", 20_784, [1], {"a": 1}, "x" * 500]
)


def _key_or_refusal(keys: UpdateKeys, key: list[Any], map_key: list[Any] | None) -> bytes | str:
    try:
        return keys.of(key, map_key)
    except KeyholeError as error:
        return error.message


@given(
    st.lists(st.sampled_from(_COLUMNS), min_size=1, max_size=2),
    st.lists(st.sampled_from(_COLUMNS), max_size=2),
    st.lists(
        st.tuples(st.lists(_PARTS, max_size=3), st.none() | st.lists(_PARTS, max_size=3)), min_size=1, max_size=20
    ),
)
def test_whatever_came_before_a_key_has_the_storage_key_that_it_has_by_itself(
    key: list[KeyType], map_key: list[KeyType], given_keys: list[tuple[list[Any], list[Any] | None]]
) -> None:
    of = msgspec.structs.replace(
        descriptor(),
        kind=StateKind.MAP if map_key else StateKind.VALUE,
        key=tuple(KeyColumn(f"k{at}", kind) for at, kind in enumerate(key)),
        map_key=tuple(KeyColumn(f"m{at}", kind) for at, kind in enumerate(map_key)),
    )
    keys = UpdateKeys(of)
    for one, other in given_keys:
        entry = other if map_key else None
        assert _key_or_refusal(keys, one, entry) == _key_or_refusal(UpdateKeys(of), one, entry)


def test_no_more_keys_are_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.state_server.write.update_keys._MOST_KEYS", 10)
    keys = UpdateKeys(descriptor())
    for number in range(100):
        assert keys.of([f"sensor-{number}"], None) == UpdateKeys(descriptor()).of([f"sensor-{number}"], None)
        assert len(keys._known) <= 10


def test_a_long_text_is_not_remembered_however_short_its_storage_key_is() -> None:
    of = msgspec.structs.replace(descriptor(), key=(KeyColumn("at", KeyType.TIMESTAMP),))
    keys, moment = UpdateKeys(of), "2026-11-27T10:00:00.000000"
    assert keys.of([f"{moment}{'0' * 1000}"], None) == keys.of([moment], None)
    assert list(keys._known) == [moment]
