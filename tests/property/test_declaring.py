"""Two queries of an application declare the same state for the first time: however their steps meet, it is one's."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.changelog.base import Marker, Partition, PartitionChanges
from keyhole.config import JobConfig
from keyhole.coordinator import declaring
from keyhole.coordinator.control import QueryRecord, read_control
from keyhole.coordinator.decisions import settled
from keyhole.coordinator.fleet import Fleet
from keyhole.coordinator.run import QueryRun
from keyhole.errors import Fenced, KeyholeError, StateConflict, TopicMismatch
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.clock import ManualClock
from keyhole.types import StateDescriptor
from tests.support.states import KEY_GROUPS, descriptor, key, row

# Mostly several steps of one in a row: what matters may need all of one's between two of the other's.
schedules = st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(1, 20)), max_size=8).map(
    lambda turns: [who for who, steps in turns for _ in range(steps)]
)


class Turns:
    """Who takes the next step: who the schedule says, or else the first one who has not come to the end.

    Args:
        schedule: One for each step.
    """

    def __init__(self, participants: int, schedule: Sequence[int]) -> None:
        self._schedule = iter(schedule)
        self._turned = threading.Condition()
        self._there = set(range(participants))
        self._mine = threading.local()
        self._choose()

    @contextmanager
    def taken_by(self, participant: int) -> Iterator[None]:
        """On the calling thread."""
        self._mine.number = participant
        try:
            yield
        finally:
            with self._turned:
                self._there.remove(participant)
                self._choose()
                self._turned.notify_all()

    def step(self) -> None:
        """Returns when it is the calling thread's turn."""
        if not hasattr(self._mine, "number"):
            return
        with self._turned:
            self._turned.wait_for(lambda: self._next == self._mine.number)
            self._choose()
            self._turned.notify_all()

    def _choose(self) -> None:
        wanted = next(self._schedule, None)
        self._next = wanted if wanted in self._there else min(self._there, default=None)


class SteppedKafka(MemoryKafka):
    """Each request to it is a step."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns

    def reach(self) -> None:
        self._turns.step()
        super().reach()


def declared(kafka: MemoryKafka, wanted: StateDescriptor, process: int) -> KeyholeError | None:
    """What a run of the query is refused with; where it isn't, it goes on to a first commit.

    Args:
        process: Runs of one wait for each other, which no schedule knows of.
    """
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
    marker = Marker(1, 1, commit_time_ms=0, watermark_ms=0, checksum=0, offsets_hash=0)
    writer.commit([PartitionChanges(Partition(wanted.state, 0), [(key("k"), row(1.0))], marker)], 1.0)
    return None


def raced(schedule: Sequence[int], *wanted: StateDescriptor) -> tuple[MemoryKafka, dict[str, KeyholeError]]:
    """The Kafka afterwards, and who was refused with what."""
    turns = Turns(len(wanted), schedule)
    kafka = SteppedKafka(turns)

    def run(participant: int) -> KeyholeError | None:
        with turns.taken_by(participant):
            return declared(kafka, wanted[participant], participant)

    with ThreadPoolExecutor(len(wanted)) as pool:
        results = list(pool.map(run, range(len(wanted))))
    return kafka, {of.query: error for of, error in zip(wanted, results, strict=True) if error is not None}


@pytest.fixture(autouse=True, scope="module")
def _nobody_sleeps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_FIRST_RETRY_SECONDS", "_MOST_RETRY_SECONDS", "_LOOK_SECONDS"):
            patch.setattr(declaring, name, 0.0)
        yield


@given(schedules, st.sampled_from([KEY_GROUPS, 2 * KEY_GROUPS]))
def test_one_of_two_queries_has_the_state_and_the_other_is_refused(schedule: Sequence[int], key_groups: int) -> None:
    kafka, refused = raced(schedule, descriptor(query="one"), descriptor(query="two", key_groups=key_groups))
    ((loser, refusal),) = refused.items()
    (winner,) = {"one", "two"} - {loser}
    # Of another number of key groups, the loser may have found the winner's topic and, however often it looked, no
    # declaration: where the winner stands still between the two.
    assert isinstance(refusal, StateConflict if key_groups == KEY_GROUPS else (StateConflict, TopicMismatch))
    if isinstance(refusal, StateConflict):
        assert f"fed by query {winner!r}; query {loser!r} can't feed it too" in refusal.message
    control = read_control(MemoryChangelog(kafka, "app").control("reader").read(1.0), loser)
    assert control.states["counts"].query == winner
    # Of the loser nothing is on record but that it ran, as where it comes later.
    assert (control.generation, control.query) == (1, None)


@given(schedules)
def test_of_two_runs_of_one_query_the_one_that_took_it_last_has_the_state(schedule: Sequence[int]) -> None:
    kafka, refused = raced(schedule, descriptor(), descriptor())
    assert all(isinstance(error, Fenced) for error in refused.values())
    control = read_control(MemoryChangelog(kafka, "app").control("reader").read(1.0), "main")
    assert control.states["counts"].query == "main"
    assert len(refused) < 2
