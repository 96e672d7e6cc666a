"""What Ctrl-C, SIGTERM and a closed terminal do to a command that has things to put away."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Self

_AGAIN_SECONDS = 0.05
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _BrokenOff(KeyboardInterrupt):
    """Ends a call that a signal has broken off; nobody else raises it."""


class StopSignals:
    """Handles them alike, while it is entered: they break off what is under way with a KeyboardInterrupt.

    But inside `gently` they only set `came`, inside `deferred` they wait for its end, and after `ignore` they do
    nothing. For the main thread.
    """

    def __init__(self) -> None:
        self.came = threading.Event()
        self._gentle = False
        self._deferred = False
        self._pending = False
        self._ignored = False

    def __enter__(self) -> Self:
        wanted = [number for number in _SIGNALS if number != signal.SIGHUP or not _outlives_its_terminal()]
        self._before = {number: signal.signal(number, self._handle) for number in wanted}
        self._hook_before = sys.unraisablehook
        sys.unraisablehook = self._unraisable
        return self

    def __exit__(self, *_: object) -> None:
        sys.unraisablehook = self._hook_before
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def gently(self) -> Iterator[None]:
        """What is inside looks at `came` by itself."""
        self._gentle = True
        try:
            yield
        finally:
            self._gentle = False

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """What is inside is not broken off in the middle, but after its end. It should be short."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
            if self._pending:
                self._break_off()

    def ignore(self) -> None:
        """From here on, nothing interrupts."""
        self._ignored = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._ignored:
            return
        self.came.set()
        if self._gentle:
            return
        if self._deferred:
            self._pending = True
        else:
            self._break_off()

    def _break_off(self) -> None:
        # Once: what handles the first must not be interrupted by a second.
        self._ignored = True
        raise _BrokenOff

    def _unraisable(self, lost: sys.UnraisableHookArgs) -> None:
        """What is raised while an object is cleared away, as a client of Kafka's is, is lost: it comes again."""
        if not isinstance(lost.exc_value, _BrokenOff):
            self._hook_before(lost)
            return
        self._ignored = False
        # Not from here, where it would be lost as well.
        again = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGTERM))
        again.daemon = True
        again.start()


def _outlives_its_terminal() -> bool:
    """It was started by nohup or the like."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def stopped_by_signals() -> contextlib.AbstractContextManager[object]:
    """StopSignals in the main thread. In another one nothing: signals don't come there."""
    return StopSignals() if threading.current_thread() is threading.main_thread() else contextlib.nullcontext()
