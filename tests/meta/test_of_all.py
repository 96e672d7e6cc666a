"""A test of many cases says which of them failed, and goes through them all."""

from __future__ import annotations

import pytest

from tests.support.of_all import of_all


def test_every_case_has_its_turn_and_those_that_fail_are_named() -> None:
    seen: list[int] = []

    @of_all([(1, 2), (3, 3), (5, 4)], lambda case: f"the pair {case}")
    def rises(low: int, high: int) -> None:
        seen.append(low)
        assert low < high

    with pytest.raises(ExceptionGroup, match="2 of 3 cases failed") as caught:
        rises()
    assert seen == [1, 3, 5]
    assert [error.__notes__ for error in caught.value.exceptions] == [
        ["case: the pair (3, 3)"],
        ["case: the pair (5, 4)"],
    ]


def test_without_any_case_it_fails() -> None:
    with pytest.raises(AssertionError, match="there is no case"):
        of_all([])(lambda: None)()
