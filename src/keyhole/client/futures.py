"""Futures of threads that are made of one another. Pure."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def then(asked: Future[T], make: Callable[[T], R]) -> Future[R]:
    """A future of what is made of another one's result, in the thread that has it. It is done after `make` alone.

    Whichever of both is cancelled, the other one is, too. What `make` raises is raised by the new one.
    """
    made: Future[R] = Future()

    def take(done: Future[T]) -> None:
        if done.cancelled():
            made.cancel()
        if not made.set_running_or_notify_cancel():
            return
        try:
            result = make(done.result())
        except Exception as error:  # noqa: BLE001 - it is the one who waits that it is raised for
            made.set_exception(error)
        else:
            made.set_result(result)

    def pass_on(of: Future[R]) -> None:
        if of.cancelled():
            asked.cancel()

    made.add_done_callback(pass_on)
    asked.add_done_callback(take)
    return made
