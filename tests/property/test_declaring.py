"""Two queries, or restores, have the same new state of an application: however their steps meet, it is one's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.changelog.base import Marker, Partition, PartitionChanges
from keyhole.config import JobConfig
from keyhole.coordinator.fleet import Fleet
from keyhole.coordinator.run import QueryRun
from keyhole.errors import Fenced, KeyholeError, SavepointMismatch, StateConflict, TopicMismatch
from keyhole.model.epoch import EpochStamp
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import QueryRecord, read_control
from keyhole.protocol.registration import settled
from keyhole.savepoint.create import CreateSettings, create
from keyhole.savepoint.folder import Folder
from keyhole.savepoint.restore_application import plan_of, restore
from keyhole.savepoint.restore_plan import RestoreOptions
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.clock import ManualClock
from tests.support.applications import Application, control_of, numbers_of
from tests.support.examples import examples
from tests.support.interleaved import interleaved, schedules
from tests.support.states import KEY_GROUPS, descriptor, key, row

Participant = Callable[[MemoryKafka], KeyholeError | None]
"""Takes part; returns what it was refused with."""

SAVED = {f"key-{number}": float(number) for number in range(20)}


def start_of(wanted: StateDescriptor, process: str = "one") -> Participant:
    """A run of the query, which goes on to a first commit of its state unless it is refused.

    Args:
        process: Runs of one wait for each other, which no schedule knows of.
    """

    def start(kafka: MemoryKafka) -> KeyholeError | None:
        changelog = MemoryChangelog(kafka, "app")
        config = JobConfig("app", ("a:1",), f"memory-of-{process}")
        log, fleet = changelog.control(wanted.query), Fleet(tuple)
        try:
            run = QueryRun(config, wanted.query, changelog, log, fleet, ManualClock())
            control = run.take()
            states = {settled(control.states.get(wanted.state), wanted): 0}
            run.declare(control, states, "refuse", QueryRecord("spark-1", base=1))
        except KeyholeError as error:
            return error
        finally:
            fleet.close()
        writer = changelog.writer(f"{wanted.query}-{run.run.generation}")
        writer.open(1.0)
        marker = Marker(EpochStamp(1, 1, 0, 0), checksum=0, offsets_hash=0)
        writer.commit([PartitionChanges(Partition(wanted.state, 0), [(key("k"), row(1.0))], marker)], 1.0)
        return None

    return start


@settings(max_examples=examples(100, least=66))
@given(schedules, st.sampled_from([KEY_GROUPS, 2 * KEY_GROUPS]))
def test_one_of_two_queries_has_the_state_and_the_other_is_refused(schedule: Sequence[int], key_groups: int) -> None:
    one, two = descriptor(query="one"), descriptor(query="two", key_groups=key_groups)
    kafka, refusals = interleaved(schedule, start_of(one, "one"), start_of(two, "two"))
    ((loser, refusal),) = _refused(("one", "two"), refusals).items()
    (winner,) = {"one", "two"} - {loser}
    # Of another number of key groups, the loser may have found the winner's topic and, however often it looked, no
    # declaration: where the winner stands still between the two.
    assert isinstance(refusal, StateConflict if key_groups == KEY_GROUPS else (StateConflict, TopicMismatch))
    if isinstance(refusal, StateConflict):
        assert f"fed by query {winner!r}; query {loser!r} can't feed it too" in refusal.message
    control = read_control(control_of(kafka, "app"), loser)
    assert control.states["counts"].query == winner
    # Of the loser nothing is on record but that it ran, as where it comes later.
    assert (control.generation, control.query) == (1, None)


def _refused(names: Sequence[str], refusals: Sequence[KeyholeError | None]) -> dict[str, KeyholeError]:
    return {name: refusal for name, refusal in zip(names, refusals, strict=True) if refusal is not None}


@given(schedules)
def test_of_two_runs_of_one_query_the_one_that_took_it_last_has_the_state(schedule: Sequence[int]) -> None:
    kafka, refusals = interleaved(schedule, start_of(descriptor(), "one"), start_of(descriptor(), "two"))
    refused = [error for error in refusals if error is not None]
    assert all(isinstance(error, Fenced) for error in refused)
    assert read_control(control_of(kafka, "app"), "main").states["counts"].query == "main"
    assert len(refused) < 2


# --- restores ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """app/counts, fed by the query main."""
    application = Application()
    application.run(3, SAVED)
    folder = Folder(str(tmp_path_factory.mktemp("savepoint")))
    create("app", application.changelog, folder, {}, ManualClock(), CreateSettings(kafka_deadline_seconds=1))
    return folder


@pytest.fixture(scope="module")
def restore_as(saved: Folder, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Participant]:
    """Restores the savepoint, its query under another name."""

    def restore_as(query: str) -> Participant:
        checkpoint = tmp_path_factory.mktemp("checkpoint") / "of"
        _, plan = plan_of(saved, RestoreOptions(queries={"main": query}, checkpoints={"main": str(checkpoint)}))

        def take_part(kafka: MemoryKafka) -> KeyholeError | None:
            try:
                restore(saved, plan, MemoryChangelog(kafka, "app"), ManualClock(), 1.0)
            except KeyholeError as error:
                return error
            return None

        return take_part

    return restore_as


@given(schedule=schedules)
def test_one_of_two_restores_has_the_state_and_the_other_is_refused(
    restore_as: Callable[[str], Participant], schedule: Sequence[int]
) -> None:
    kafka, refusals = interleaved(schedule, restore_as("one"), restore_as("two"))
    ((loser, refusal),) = _refused(("one", "two"), refusals).items()
    assert isinstance(refusal, SavepointMismatch | Fenced)
    (winner,) = {"one", "two"} - {loser}
    _assert_restored(kafka, winner, loser)


@given(schedule=schedules)
def test_of_two_processes_with_the_same_restore_one_ends_it_and_nothing_is_written_after_that(
    restore_as: Callable[[str], Participant], schedule: Sequence[int]
) -> None:
    same = restore_as("one")
    kafka, refusals = interleaved(schedule, same, same)
    ((_, refusal),) = _refused(("first", "second"), refusals).items()
    assert isinstance(refusal, SavepointMismatch | Fenced)
    _assert_restored(kafka, "one", "nobody")
    complete = read_control(control_of(kafka, "app"), "one").complete
    assert complete is not None
    ends = MemoryChangelog(kafka, "app").reader().ends({"counts": range(KEY_GROUPS)}, 1.0)
    # After a marker comes the end of its transaction.
    assert [offset + 2 for offset in complete.markers["counts"]] == [
        ends[Partition("counts", group)] for group in range(KEY_GROUPS)
    ]


@given(schedule=schedules)
def test_a_restore_has_the_state_or_a_query_that_starts_at_the_same_time(
    restore_as: Callable[[str], Participant], schedule: Sequence[int]
) -> None:
    starts = start_of(descriptor(query="starting"))
    kafka, refusals = interleaved(schedule, restore_as("restored"), starts)
    ((loser, refusal),) = _refused(("restored", "starting"), refusals).items()
    # Begun again, it is told whose the state is.
    assert isinstance(refusal, SavepointMismatch | (StateConflict if loser == "starting" else Fenced))
    if loser == "starting":
        _assert_restored(kafka, "restored", loser)
    else:
        control = read_control(control_of(kafka, "app"), loser)
        assert (control.states["counts"].query, control.savepoint) == ("starting", None)
        assert numbers_of(kafka, descriptor()) == {"k": 1.0}


@given(schedule=schedules)
def test_a_restore_and_a_start_of_its_own_query_never_both_have_the_state(
    restore_as: Callable[[str], Participant], schedule: Sequence[int]
) -> None:
    kafka, (of_restore, of_start) = interleaved(schedule, restore_as("main"), start_of(descriptor()))
    if of_restore is None and of_start is None:
        # One after the other: it has gone on from what was restored.
        assert numbers_of(kafka, descriptor()) == SAVED | {"k": 1.0}
    elif of_restore is None:
        _assert_restored(kafka, "main", "nobody")
    elif of_start is None:
        assert numbers_of(kafka, descriptor()) == {"k": 1.0}
    else:
        # Each has ended the other: what was on record by then says which of them can be begun again. Not a restore's
        # beginning: whoever starts after that is refused, and keeps the restore from nothing.
        assert all(isinstance(error, Fenced | SavepointMismatch) for error in (of_restore, of_start))
        assert not read_control(control_of(kafka, "app"), "main").restoring
        refusal = restore_as("main")(kafka)
        if refusal is None:
            _assert_restored(kafka, "main", "nobody")
        else:
            assert isinstance(refusal, SavepointMismatch)
            assert start_of(descriptor())(kafka) is None


def _assert_restored(kafka: MemoryKafka, winner: str, loser: str) -> None:
    records = control_of(kafka, "app")
    control = read_control(records, winner)
    assert (control.states["counts"].query, control.savepoint is not None) == (winner, True)
    assert control.savepoint is not None
    assert control.savepoint.finished
    assert numbers_of(kafka, descriptor()) == SAVED
    assert read_control(records, loser).savepoint is None
