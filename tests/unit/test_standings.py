"""What a standby copy may claim: everything complete that it has, and nothing that it lacks."""

from __future__ import annotations

from keyhole.model.epoch import EpochStamp, Position
from keyhole.protocol.control import CompleteRecord
from services.state_server.read.freshness import most_common, standings
from services.state_server.read.standing import Standing

HEARD = 12.5


def complete(epoch: int, markers: list[int], at_ms: int = 99_000) -> CompleteRecord:
    return CompleteRecord(epoch, 3, 1000 * epoch, 500 * epoch, 7, {"counts": markers}, told_ms=at_ms)


def position(offset: int, epoch: int) -> Position:
    return Position(offset, epoch, 3, 0, 1000 * epoch, 500 * epoch)


def test_a_copy_that_has_reached_its_marker_stands_for_the_complete_epoch_though_its_own_is_older() -> None:
    (found,) = standings("counts", {0: position(11, 4)}, complete(9, [10]), {}, HEARD).values()
    assert found == Standing(EpochStamp(9, 3, 9000, 4500), as_of_ms=99_000, heard_monotonic=HEARD)


def test_a_copy_one_record_before_its_marker_stands_for_its_own_epoch_and_knows_its_lag() -> None:
    (found,) = standings("counts", {0: position(10, 4)}, complete(9, [10]), {}, HEARD).values()
    assert (found.stamp.epoch, found.lag_epochs, found.as_of_ms) == (4, 5, 0)


def test_a_copy_that_falls_behind_never_claims_less_than_before() -> None:
    before = standings("counts", {0: position(11, 4)}, complete(9, [10]), {}, HEARD)
    (found,) = standings("counts", {0: position(11, 4)}, complete(12, [20], at_ms=200_000), before, 20.0).values()
    assert (found.stamp.epoch, found.lag_epochs) == (9, 3)
    assert (found.as_of_ms, found.heard_monotonic) == (99_000, HEARD)


def test_an_epoch_that_is_committed_and_not_yet_complete_is_told_as_its_own() -> None:
    found = standings("counts", {0: position(21, 10), 1: position(31, 8)}, complete(9, [10, 30]), {}, HEARD)
    assert [found[group].stamp.epoch for group in (0, 1)] == [10, 9]
    assert found[0].stamp.commit_time_ms == 10_000


def test_without_a_complete_epoch_a_copy_stands_for_what_it_has_and_its_age_is_unknown() -> None:
    for control in (None, CompleteRecord(5, 1, 5000, 0, 0, {"other": [1]})):
        (found,) = standings("counts", {0: position(11, 4)}, control, {}, HEARD).values()
        assert (found.stamp.epoch, found.as_of_ms, found.lag_epochs) == (4, 0, 0)


def test_a_key_group_that_was_never_written_stands_for_the_complete_epoch_too() -> None:
    (found,) = standings("counts", {0: position(0, 0)}, complete(9, [-1]), {}, HEARD).values()
    assert found.stamp.epoch == 9


def test_the_standing_of_most_key_groups_is_the_one_that_is_told_once() -> None:
    usual, other = (Standing(EpochStamp(epoch, 1, 0, 0)) for epoch in (3, 2))
    assert most_common({0: usual, 1: other, 2: usual}) == usual
    assert most_common({}) == Standing()
