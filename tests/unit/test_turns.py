"""Threads that wait for each other, and for nobody who is stuck."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from keyhole.clock import SystemClock
from keyhole.coordinator.local_lock import Turns, turns_of
from keyhole.testing.clock import ManualClock
from tests.support.waiting import PATIENCE_SECONDS, SOON_SECONDS


def test_the_queries_of_an_application_share_their_turns_and_others_do_not() -> None:
    assert turns_of("kafka:9092", "a") is turns_of("kafka:9092", "a")
    assert len({turns_of("kafka:9092", "a"), turns_of("kafka:9092", "b"), turns_of("kafka:9093", "a")}) == 3


def test_one_has_a_turn_at_a_time_and_one_that_failed_is_over() -> None:
    turns, inside, most = Turns(), list[int](), list[int]()

    def take(number: int) -> None:
        with turns.mine(SystemClock(), PATIENCE_SECONDS):
            inside.append(number)
            most.append(len(inside))
            inside.remove(number)
            if number % 2:
                raise ValueError(number)

    with ThreadPoolExecutor(8) as pool:
        ended = [pool.submit(take, number) for number in range(200)]
        assert sum(isinstance(one.exception(), ValueError) for one in ended) == 100
    assert (len(most), max(most)) == (200, 1)


def test_nobody_waits_for_one_that_is_stuck_and_its_end_ends_nobody_elses_turn() -> None:
    turns, stuck, released = Turns(), threading.Event(), threading.Event()
    # Of this thread, which loses patience at once; others wait for their turn.
    clock = ManualClock()
    said = list[str]()

    def hold() -> None:
        with turns.mine(clock, 60):
            stuck.set()
            assert released.wait(PATIENCE_SECONDS)
            said.append("the one that was stuck has ended")

    def come() -> None:
        with turns.mine(clock, 60):
            said.append("the next one has its turn")

    with ThreadPoolExecutor(2) as pool:
        holding = pool.submit(hold)
        assert stuck.wait(PATIENCE_SECONDS)
        with turns.mine(clock, 60):
            said.append("one beside it has begun")
        coming = pool.submit(come)
        released.set()
        for thread in (holding, coming):
            thread.result(SOON_SECONDS)
    assert said == ["one beside it has begun", "the one that was stuck has ended", "the next one has its turn"]
    assert clock.monotonic() == 60
