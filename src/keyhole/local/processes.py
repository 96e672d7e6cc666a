"""One supervised child process: its own session, a log file, health, an end that leaves nothing behind.

The child leads a process group of its own, so that a Ctrl-C in the terminal reaches only us, and all of its own
children die with it. It also dies when we do, however we end (SIGKILL too): a shell in its group waits for the end of
a pipe that only we hold, then kills the group. That works on every POSIX system and from any thread; Linux's
PR_SET_PDEATHSIG would kill the child when the thread ends that started it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from keyhole.errors import MachineError

# The watching shell stands in the group that it kills; the child takes over the first shell's process id.
_WATCHED = 'exec 3<&0; (read -r _ <&3; kill -s KILL -- -$$) & exec "$@" </dev/null 3<&-'
_POLL_SECONDS = 0.05
_TAIL_LINES = 20
_CRASH_LINES = 150


class Child:
    """A running child process. Thread-safe, once it is made.

    Args:
        name: What a person calls it, for messages.
        command: Program and arguments.
        log: Standard output and error are appended here.
        environ: The child's whole environment.
        directory: Its working directory; None: ours.

    Raises:
        MachineError: The program can't be started.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        environ: Mapping[str, str],
        directory: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._sweeping = threading.Lock()
        # What the log held before: the tail of an earlier run is not ours to show.
        self.log_start_bytes = log.stat().st_size if log.exists() else 0
        watched, self._alive = os.pipe()
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _WATCHED, "sh", *map(str, command)],
                    stdin=watched,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=dict(environ),
                    cwd=directory,
                    start_new_session=True,
                )
        except OSError as error:
            os.close(self._alive)
            raise MachineError(f"{name} can't be started: {error}", name=name) from error
        finally:
            os.close(watched)

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its process group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs; negative: the signal that ended it. Whoever sees the end leaves nothing of
        its group.
        """
        code = self._process.poll()
        if code is not None:
            self._sweep()
        return code

    def wait_healthy(self, healthy: Callable[[], bool], timeout_seconds: float) -> None:
        """Asks `healthy` again and again until it says yes.

        Raises:
            MachineError: The child ended, or was not healthy in time (it then still runs). The message has the end of
                its log.
        """
        until = time.monotonic() + timeout_seconds
        while not healthy():
            if self.exit_code is not None:
                raise self._failed(f"{self.name} ended with exit code {self.exit_code} before it was healthy")
            if time.monotonic() > until:
                raise self._failed(f"{self.name} was not healthy within {timeout_seconds:.0f} s")
            time.sleep(_POLL_SECONDS)

    def wait(self, timeout_seconds: float) -> int | None:
        """Waits for its end and returns the exit code, or None where it still runs after the timeout."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_seconds)
        return self.exit_code

    def terminate(self, timeout_seconds: float = 10) -> int:
        """SIGTERM, after the timeout SIGKILL to what is left of its group. Returns the exit code. Idempotent."""
        if self.exit_code is None:
            self._process.terminate()
            self.wait(timeout_seconds)
        return self.kill()

    def kill(self) -> int:
        """SIGKILL to its whole group; waits for its end and returns the exit code. Idempotent."""
        self._sweep()
        return self._process.wait()

    def output(self) -> str:
        """What it has written to its log so far."""
        with self.log.open("rb") as log:
            log.seek(self.log_start_bytes)
            return log.read().decode(errors="replace")

    def _sweep(self) -> None:
        # One thread alone: closed twice, the descriptor could by then be the one that keeps another child alive.
        with self._sweeping:
            if self._alive >= 0:
                # The group's id can't have been given to others: the watching shell is still in it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                os.close(self._alive)
                self._alive = -1

    def _failed(self, what: str) -> MachineError:
        return MachineError(
            f"{what}; the end of {self.log}:\n{last_words(self.output())}",
            name=self.name,
            log=self.log,
            exit_code=self.exit_code,
        )


def last_words(output: str) -> str:
    """The last lines; of a Python process that a signal has ended the threads' stacks, that of the fault first."""
    fatal = output.rfind("Fatal Python error")
    if fatal < 0:
        return "\n".join(output.splitlines()[-_TAIL_LINES:])
    what, *stacks = output[fatal:].split("\n\n")
    stacks.sort(key=lambda stack: not stack.startswith("Current thread"))
    return "\n".join("\n".join([what, *stacks]).splitlines()[:_CRASH_LINES])
