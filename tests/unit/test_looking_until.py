"""`keyhole move` and `keyhole drain` look again and again until it is done, or their time is over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from keyhole.cli.patience import look_until
from keyhole.errors import ServerLost
from keyhole.testing.clock import ManualClock


def _looks(*seen: int | None) -> Callable[[], int]:
    """One after the other; None: a look that fails."""
    coming = iter(seen)

    def look() -> int:
        if (of := next(coming)) is None:
            raise ServerLost("away")
        return of

    return look


def _looked(clock: ManualClock, *seen: int | None, may_fail: bool = False) -> int:
    looks = _looks(*seen)
    return look_until(lambda left: left == 0, looks, 3, 2.0, "waiting", may_fail=may_fail, clock=clock)


def test_what_is_over_is_given_at_once() -> None:
    clock = ManualClock()
    assert _looked(clock, 2, 0, 7) == 0
    assert clock.monotonic() == 1.0


def test_what_is_not_over_in_time_is_given_as_it_was_seen_last() -> None:
    clock = ManualClock()
    assert _looked(clock, 3, 2, 2, 1, 0) == 1
    assert clock.monotonic() == 2.0


def test_a_look_that_fails_ends_it() -> None:
    with pytest.raises(ServerLost):
        _looked(ManualClock(), 2, None, 0)


def test_a_look_that_may_fail_is_made_again_while_there_is_time() -> None:
    assert _looked(ManualClock(), None, None, 0, may_fail=True) == 0
    with pytest.raises(ServerLost):
        _looked(ManualClock(), 2, None, None, None, may_fail=True)
