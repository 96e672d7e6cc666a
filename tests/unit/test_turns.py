"""Threads that wait for each other, and for nobody who is stuck."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from keyhole.coordinator.turns import Turns, turns_of
from tests.support.waiting import PATIENCE_SECONDS, SOON_SECONDS


def test_the_queries_of_an_application_share_their_turns_and_others_do_not() -> None:
    assert turns_of("kafka:9092", "a") is turns_of("kafka:9092", "a")
    assert len({turns_of("kafka:9092", "a"), turns_of("kafka:9092", "b"), turns_of("kafka:9093", "a")}) == 3


def test_one_has_a_turn_at_a_time_and_one_that_failed_is_over() -> None:
    turns, inside, most = Turns(), list[int](), list[int]()

    def take(number: int) -> None:
        with turns.mine(PATIENCE_SECONDS):
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

    def hold() -> None:
        with turns.mine(PATIENCE_SECONDS):
            stuck.set()
            assert released.wait(PATIENCE_SECONDS)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        assert stuck.wait(PATIENCE_SECONDS)
        with turns.mine(0.01):
            # Beside it.
            released.set()
            holding.result(SOON_SECONDS)
        with turns.mine(PATIENCE_SECONDS), ThreadPoolExecutor(1) as other:
            assert not other.submit(turns._lock.acquire, blocking=False).result(SOON_SECONDS)
