"""What the subtasks of an operator state are given of what they held, where some of it has expired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.envelope import Base
from keyhole.model.state import KeyColumn, KeyType, StateKind
from keyhole.spark.operators import Mode, Operator, Subtask
from keyhole.spark.worker.base_reader import BaseReader
from keyhole.spark.worker.subtasks import SUBTASK, SubtaskNumber, _Before, _StoredSubtask
from tests.support.states import descriptor

CODEC = StateCodec(descriptor(kind=StateKind.AGGREGATING, key=(KeyColumn(SUBTASK, KeyType.INT),)))


class Held:
    """What the owners hold that has not expired, by subtask; and which subtasks were asked for."""

    def __init__(self, elements: dict[int, _StoredSubtask]) -> None:
        self._bases = {CODEC.storage_key(index): msgspec.msgpack.encode(of) for index, of in elements.items()}
        self.asked: list[int] = []

    def bases(self, keys: Sequence[bytes]) -> dict[bytes, Base]:
        self.asked += [index for index in range(10) if CODEC.storage_key(index) in keys]
        return {key: Base(self._bases[key], 1) for key in keys if key in self._bases}


def given(held: Held, index: int, now: int, mode: Mode = "list", most: int = 4) -> tuple[list[Any], bool]:
    """As a task does it: the subtask's elements, and whether it is told that their number has changed."""
    number = SubtaskNumber(now, max(now, most), now)
    before = _Before(cast("BaseReader", held), CODEC, index, number, cast("Operator", None))
    subtask = Subtask(index, now, restored=before.count not in (0, now))
    return before.elements(subtask, mode), subtask.restored


def four(*living: int) -> Held:
    """Four subtasks held two elements each; all but these have expired."""
    return Held({index: _StoredSubtask(4, [f"{index}a", f"{index}b"]) for index in living})


@pytest.mark.parametrize("living", [(0, 2, 3), (1, 2), (3,)])
def test_a_subtask_keeps_what_it_held_though_others_have_expired(living: tuple[int, ...]) -> None:
    for index in range(4):
        elements = [f"{index}a", f"{index}b"] if index in living else []
        assert given(four(*living), index, now=4) == (elements, False)


@pytest.mark.parametrize(
    ("living", "now"),
    [((0, 2, 3), 6), ((1, 2), 6), ((0, 3), 2), ((1, 3), 2), ((0, 1, 2, 3), 3), ((2, 3), 2), ((3,), 1)],
)
def test_what_has_not_expired_is_dealt_out_when_the_number_changes(living: tuple[int, ...], now: int) -> None:
    everything = [f"{index}{which}" for index in living for which in "ab"]
    shares = [given(four(*living), index, now) for index in range(now)]
    assert all(restored for _, restored in shares)
    assert sorted(element for elements, _ in shares for element in elements) == everything
    for index in range(now):
        assert given(four(*living), index, now, "union") == (everything, True)


def test_where_all_has_expired_the_state_is_new() -> None:
    assert [given(four(), index, now=3) for index in range(3)] == [([], False)] * 3


def test_a_subtask_that_is_no_more_does_not_tell_how_many_there_are() -> None:
    """Of five subtasks two were left, and then three: what the last two hold says that there were two."""
    held = Held({index: _StoredSubtask(3 if index < 3 else 2, [index] if index < 3 else []) for index in (1, 2, 3, 4)})
    assert [given(held, index, now=5)[0] for index in range(5)] == [[1], [2], [], [], []]


def test_where_nothing_has_expired_a_subtask_asks_for_no_other_but_the_first() -> None:
    held = four(0, 1, 2, 3)
    given(held, 2, now=4, most=9)
    assert held.asked == [0, 2]


def test_where_all_that_are_left_has_expired_those_are_asked_for_that_there_have_been() -> None:
    held = four()
    assert given(held, 1, now=2, most=5) == ([], False)
    assert sorted(held.asked) == [0, 1, 2, 3, 4]
