"""Stops a process at a step of an epoch, for tests of what a crash there leaves behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from keyhole.protocol.failpoints import Step


class KillPoints:
    """A StepObserver that ends its own process, with SIGKILL, at one step; once, however often it is started again.

    Args:
        step: Where. None: nowhere.
        epoch: At the first epoch from this one on.
        marker: Made just before the end: the process that finds it lives. A file of the test's own.
        wait: Rather than kill itself, stop there and wait to be killed.
    """

    def __init__(self, step: Step | None, epoch: int, marker: Path, *, wait: bool = False) -> None:
        self._step = step
        self._epoch = epoch
        self._marker = marker
        self._wait = wait

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> KillPoints:
        """From KILL_AT (a step's name; absent: nowhere), KILL_EPOCH, KILL_MARKER, and KILL_WAIT ("1": wait)."""
        step = environ.get("KILL_AT")
        return cls(
            Step(step) if step else None,
            int(environ.get("KILL_EPOCH", "0")),
            Path(environ.get("KILL_MARKER", "killed")),
            wait=environ.get("KILL_WAIT") == "1",
        )

    @staticmethod
    def environ(step: str, epoch: int, marker: Path) -> dict[str, str]:
        """What `from_environ` reads in the process that is to end."""
        return {"KILL_AT": str(step), "KILL_EPOCH": str(epoch), "KILL_MARKER": str(marker)}

    def reached(self, step: Step, epoch: int) -> None:
        if step is not self._step or epoch < self._epoch or self._marker.exists():
            return
        self._marker.write_text(f"{step} {epoch}")
        if not self._wait:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            time.sleep(1)
