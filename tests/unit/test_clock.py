"""Waiting by a clock: the machine's, and one that a test moves."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from keyhole.clock import Clock, SystemClock
from keyhole.testing.clock import ManualClock
from tests.support.waiting import SOON_SECONDS


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()], ids=["the machine's", "a test's"])
async def test_who_waits_goes_on_that_much_later_by_the_clock(clock: Clock) -> None:
    began, began_ms = clock.monotonic(), clock.now_ms()
    clock.sleep(0.02)
    assert clock.monotonic() - began >= 0.02
    assert not clock.wait(threading.Event(), 0.02)
    assert clock.monotonic() - began >= 0.04
    await clock.pause(0.02)
    assert clock.monotonic() - began >= 0.06
    clock.sleep(-1.0)
    if isinstance(clock, ManualClock):
        assert (clock.monotonic() - began, clock.now_ms() - began_ms) == (pytest.approx(0.06), 60)


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()], ids=["the machine's", "a test's"])
def test_an_event_that_is_set_is_not_waited_for(clock: Clock) -> None:
    event, began = threading.Event(), clock.monotonic()
    event.set()
    assert clock.wait(event, 1000.0)
    assert clock.monotonic() - began < 1000


def test_another_thread_than_the_tests_waits_for_the_event_and_moves_no_clock() -> None:
    clock, event, waits = ManualClock(), threading.Event(), threading.Event()

    def wait() -> bool:
        waits.set()
        return clock.wait(event, 10.0)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        assert waits.wait(SOON_SECONDS)
        event.set()
        assert waiting.result(SOON_SECONDS)
    assert clock.monotonic() == 0


def test_or_until_the_test_has_moved_the_clock() -> None:
    clock, event = ManualClock(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(clock.wait, event, 10.0)
        while not waiting.done():  # it may begin to wait after any of these
            clock.advance(10.0)
        assert not waiting.result()
