"""Several participants of a Kafka in memory, one step at a time, in an order that a test chooses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from hypothesis import strategies as st

from keyhole.testing.changelog import MemoryKafka

_T = TypeVar("_T")

_LONG = 1000

# One stands still at any of its steps, and the other comes to its end meanwhile.
_standing_still = st.tuples(st.sampled_from([0, 1]), st.integers(1, 40)).map(
    lambda turn: [turn[0]] * turn[1] + [1 - turn[0]] * _LONG
)
# Mostly several steps of one in a row: what matters may need all of one's between two of the other's.
_mixed = st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(1, 20)), max_size=8).map(
    lambda turns: [who for who, steps in turns for _ in range(steps)]
)
schedules = _standing_still | _mixed


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


def interleaved(schedule: Sequence[int], *participants: Callable[[MemoryKafka], _T]) -> tuple[MemoryKafka, list[_T]]:
    """The Kafka afterwards, and what each has returned."""
    turns = Turns(len(participants), schedule)
    kafka = SteppedKafka(turns)

    def run(participant: int) -> _T:
        with turns.taken_by(participant):
            return participants[participant](kafka)

    with ThreadPoolExecutor(len(participants)) as pool:
        return kafka, list(pool.map(run, range(len(participants))))
