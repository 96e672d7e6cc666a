"""What states begin with: once, however often it is broken off; and the stream that follows. The state is a sum."""

from __future__ import annotations

import pytest

from keyhole.errors import CheckpointMismatch, StateConflict
from keyhole.protocol.control import QueryRecord
from keyhole.protocol.epoch_of_batch import OnNewCheckpoint, check_bootstrap, check_start, is_bootstrapped
from tests.support.simulation import DriverDiedError, Fault, World
from tests.support.states import KEY_GROUPS, complete, row
from tests.support.sums import KEYS, ONE, sums

BEGUN = QueryRecord("", base=1, bootstrap="history")


class TestDecisions:
    """check_bootstrap, and check_start after it."""

    def test_an_empty_query_begins_with_it_at_epoch_1(self) -> None:
        assert check_bootstrap("q", None, None, "history", reset=False) == BEGUN

    def test_one_that_was_broken_off_is_the_same_epoch_again(self) -> None:
        assert not is_bootstrapped(BEGUN, None, "history")
        assert check_bootstrap("q", BEGUN, None, "history", reset=False) is BEGUN

    @pytest.mark.parametrize(
        ("known", "last"), [(BEGUN, 1), (QueryRecord("spark", base=2, first_epoch=2, bootstrap="history"), 7)]
    )
    def test_one_that_is_complete_is_done_also_when_a_stream_has_followed(self, known: QueryRecord, last: int) -> None:
        assert is_bootstrapped(known, complete(last), "history")
        assert not is_bootstrapped(known, complete(last), "another")

    @pytest.mark.parametrize(
        ("known", "last", "says"),
        [
            (BEGUN, 1, "'q' was bootstrapped already, as 'history'"),
            (BEGUN, 0, "'q' was bootstrapped already, as 'history'"),
            (QueryRecord("spark", base=1), 0, "'q' has begun with its stream"),
            (QueryRecord("spark", base=1), 7, "'q' has completed epoch 7"),
        ],
    )
    def test_states_that_have_begun_are_refused_with_the_ways_out_or_replaced(
        self, known: QueryRecord, last: int, says: str
    ) -> None:
        before = complete(last) if last else None
        with pytest.raises(StateConflict, match=says) as caught:
            check_bootstrap("q", known, before, "another", reset=False)
        assert all(words in caught.value.message for words in ("other names", 'on_new_checkpoint="reset"'))
        made = check_bootstrap("q", known, before, "another", reset=True)
        assert made.reset_epoch == made.first_epoch == made.base > last + 1

    @pytest.mark.parametrize("policy", ["refuse", "continue", "reset"])
    def test_a_new_checkpoint_goes_on_after_it(self, policy: OnNewCheckpoint) -> None:
        record = check_start("q", BEGUN, complete(1), "spark", 0, 0, policy)
        assert record == QueryRecord("spark", base=2, first_epoch=2, bootstrap="history")
        assert check_start("q", record, complete(1), "spark", 0, 0, "refuse") is record
        with pytest.raises(CheckpointMismatch):
            check_start("q", record, complete(2), "another", 0, 0, "refuse")
        assert check_start("q", record, complete(2), "another", 0, 0, "continue").bootstrap == "history"
        assert check_start("q", record, complete(2), "another", 0, 0, "reset").bootstrap == "history"

    def test_a_checkpoint_that_was_in_use_before_must_be_asked_for(self) -> None:
        with pytest.raises(CheckpointMismatch, match="begins with batch 5 of a checkpoint that was in use before"):
            check_start("q", BEGUN, complete(1), "spark", 5, 0, "refuse")
        assert check_start("q", BEGUN, complete(1), "spark", 5, 0, "continue").base == -3

    def test_a_stream_does_not_follow_half_of_it_but_may_take_its_place(self) -> None:
        for policy in ("refuse", "continue"):
            with pytest.raises(CheckpointMismatch, match="'history' of query 'q' was begun and is not finished"):
                check_start("q", BEGUN, None, "spark", 0, 0, policy)  # type: ignore[arg-type]  # both are policies
        over = check_bootstrap("q", QueryRecord("spark", base=1), complete(5), "history", reset=True)
        assert check_start("q", over, complete(5), "spark", 0, 0, "reset").bootstrap == "", "it is still to be done"
        record = check_start("q", BEGUN, None, "spark", 0, 0, "reset")
        assert record.reset_epoch == record.base == record.first_epoch > 1
        assert record.bootstrap == ""


@pytest.mark.parametrize("fault", [Fault.DRIVER_DIES, Fault.DRIVER_DIES_AFTER])
@pytest.mark.parametrize("server", ["a", "b"])
@pytest.mark.parametrize("method", ["Stage", "Commit"])
def test_one_that_was_broken_off_anywhere_is_finished_and_counts_once(
    world: World, server: str, method: str, fault: Fault
) -> None:
    world.faults_at[server, method] = fault
    with pytest.raises(DriverDiedError):
        world.run_epoch(0, ONE, bootstrap="history")
    with pytest.raises(CheckpointMismatch, match="call bootstrap again"):
        world.run_epoch(0, ONE)
    with pytest.raises(StateConflict):
        world.run_epoch(0, ONE, bootstrap="another")
    assert world.run_epoch(0, ONE, bootstrap="history").epoch == 1
    assert sums(world) == [1.0] * KEY_GROUPS
    world.driver_dies()
    assert world.run_epoch(0, ONE).epoch == 2
    assert world.run_epoch(1, ONE).epoch == 3
    assert sums(world) == [3.0] * KEY_GROUPS


def test_it_takes_the_place_of_what_is_there_where_that_is_asked_for(world: World) -> None:
    world.run_epoch(0, ONE)
    world.driver_dies()
    world.run_epoch(0, {KEYS[0]: row(5.0)}, bootstrap="history", on_new_checkpoint="reset")
    assert sums(world) == [5.0] + [0.0] * (KEY_GROUPS - 1)
    world.driver_dies()
    world.run_epoch(0, ONE, spark_query_id="spark-2", on_new_checkpoint="reset")
    assert sums(world) == [6.0] + [1.0] * (KEY_GROUPS - 1)


def test_asking_whether_it_is_done_fences_nobody(world: World) -> None:
    world.run_epoch(0, ONE, bootstrap="history")
    world.driver_dies()
    world.run_epoch(0, ONE)
    running = world.coordinator
    world.coordinator = None
    other = world.another_driver("refuse")
    assert other.bootstrapped("history")
    with pytest.raises(StateConflict):
        other.bootstrapped("another")
    other.close()
    world.coordinator = running
    assert world.run_epoch(1, ONE).epoch == 3
