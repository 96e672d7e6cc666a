"""A process that is distinguished from a later one with the same number, so that no signal reaches a stranger."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import msgspec

from keyhole.hints import ready

_PROC = Path("/proc")
_LOOK_SECONDS = 0.05
_PS_SECONDS = 10.0


@ready
class KnownProcess(msgspec.Struct, frozen=True):
    """One life of a process: its number, and when it began, as `birth` has it."""

    pid: int
    birth: str

    @property
    def alive(self) -> bool:
        """Whether this one runs: not if it has ended, or if another one has its number by now."""
        return bool(self.birth) and birth(self.pid) == self.birth

    def send(self, number: signal.Signals) -> None:
        """A signal, if it runs."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_group(self) -> None:
        """SIGKILL to all of the group that it leads, if it runs."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within that time. Blocks."""
        until = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > until:
                return False
            time.sleep(_LOOK_SECONDS)
        return True


def process_of(pid: int) -> KnownProcess:
    """The one that has the number now."""
    return KnownProcess(pid, birth(pid))


def birth(pid: int) -> str:
    """When the process began, in words that are those of no other one with its number. Empty: there is none, or it has
    ended and only waits to be asked for its exit code.
    """
    if not (_PROC / "self" / "stat").exists():
        return _birth_by_ps(pid)
    try:
        # The name, in parentheses, may have any sign in it.
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        boot = (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    except OSError:
        return ""
    state, ticks = fields[0], fields[19]
    return "" if state in "ZX" else f"{boot} {ticks}"


def _birth_by_ps(pid: int) -> str:
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PS_SECONDS, check=False, env={**os.environ, "LC_ALL": "C"}
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    state, _, began = done.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else " ".join(began.split())
