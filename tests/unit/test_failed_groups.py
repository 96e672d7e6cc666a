"""What readers see of key groups whose updates could not be applied, until they are there again."""

from __future__ import annotations

from typing import Any

from keyhole.testing.clock import ManualClock
from services.state_server.write.failed_groups import FailedGroups
from services.state_server.write.fed_group import FedGroup


class Failed:
    """Key group 3, in its seventh time as owned."""

    def __init__(self) -> None:
        self.clock, self.tenures = ManualClock(), {3: 7}
        self.of = FailedGroups(lambda group: self.tenures.get(group, 0), self.clock)
        self.before: Any = object()

    def add(self, *, shown: bool, again: bool = False) -> None:
        group = FedGroup(7, self.clock.monotonic(), at=40, shown_from=30, shown=shown, again=again)
        self.of.add(3, group, self.before)


def test_what_readers_saw_they_go_on_seeing_until_it_is_there_again() -> None:
    failed = Failed()
    assert (list(failed.of.kept), failed.of.overlays, failed.of.standing(3)) == ([], {}, None)
    failed.add(shown=True)
    assert list(failed.of.kept) == [3]
    assert failed.of.overlays == {3: failed.before}
    assert failed.of.standing(3) is not None
    assert len(failed.of.lags()) == 1
    failed.of.there_again(3)
    assert (list(failed.of.kept), failed.of.overlays, failed.of.standing(3)) == ([], {}, None)


def test_one_that_fails_again_on_the_way_is_seen_as_before_it_failed_at_first() -> None:
    failed = Failed()
    failed.add(shown=True)
    first, failed.before = failed.before, object()
    failed.add(shown=False, again=True)
    assert failed.of.overlays == {3: first}


def test_nothing_is_kept_of_one_that_is_owned_anew() -> None:
    failed = Failed()
    failed.add(shown=True)
    failed.tenures[3] = 8
    assert (list(failed.of.kept), failed.of.overlays) == ([], {})
    failed.of.leave()
    assert failed.of.standing(3) is None


def test_how_far_readers_may_have_seen_it_is_said_once_to_who_begins_it_anew() -> None:
    failed = Failed()
    assert failed.of.begun(3) is None
    failed.add(shown=True)
    assert failed.of.begun(3) == 40
    assert failed.of.begun(3) is None


def test_one_that_fails_again_on_the_way_begins_a_second_later_and_any_other_at_once() -> None:
    failed = Failed()
    failed.add(shown=True)
    assert failed.of.may_begin(3)
    failed.add(shown=False, again=True)
    failed.clock.advance(0.9)
    assert not failed.of.may_begin(3)
    assert failed.of.may_begin(4)
    failed.clock.advance(0.2)
    assert failed.of.may_begin(3)
