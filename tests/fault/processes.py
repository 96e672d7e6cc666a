"""A process that faults strike, and that comes back as it was."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Sequence

from keyhole.errors import MachineError
from keyhole.local.processes import Child, last_words
from tests.fault.history import Ended

_POLL_SECONDS = 0.1
_RESTART_SECONDS = 0.5


class Managed:
    """One process of the cluster, over all its starts. Thread-safe; each call blocks until it is done.

    Args:
        start: Starts it, and returns once it answers, or at once.
        why: Why the process of this id ended by itself: reason and message.
    """

    def __init__(
        self, name: str, start: Callable[[], Child], why: Callable[[Child], tuple[str, str]] | None = None
    ) -> None:
        self.name = name
        self._start = start
        self._why = why or _crashed
        self._lock = threading.RLock()
        self._child: Child | None = None
        self._usurped: list[Child] = []
        self.wanted = False

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def start(self) -> None:
        """Idempotent. A start that fails is tried again: by `revived`, while it is wanted."""
        with self._lock:
            self.wanted = True
            if self._child is None:
                self._child = self._start()

    def kill(self) -> None:
        """SIGKILL. Idempotent."""
        with self._lock:
            self.wanted = False
            for child in (*self._usurped, self._child):
                if child is not None:
                    child.kill()
            self._child = None
            self._usurped.clear()

    def terminate(self, timeout_seconds: float) -> int | None:
        """SIGTERM, after the timeout SIGKILL. Returns the exit code, or None where it did not run."""
        with self._lock:
            self.wanted = False
            if self._child is None:
                return None
            child, self._child = self._child, None
        return child.terminate(timeout_seconds)

    def suspend(self) -> None:
        """SIGSTOP. Nothing where it doesn't run."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT to whatever was suspended."""
        self._signal(signal.SIGCONT)

    def usurp(self) -> None:
        """Starts another one beside the one that there is, which counts for nothing from now on."""
        with self._lock:
            if self._child is not None:
                self._usurped.append(self._child)
                self._child = None
            self.start()

    def limit_files(self, size_bytes: int | None) -> None:
        """No file may grow beyond it; None: any may. What a full disk is to whoever writes."""
        with self._lock:
            if self._child is not None and self._child.exit_code is None:
                limit = resource.RLIM_INFINITY if size_bytes is None else size_bytes
                with contextlib.suppress(ProcessLookupError):
                    resource.prlimit(self._child.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def revived(self) -> Ended | None:
        """Where it has ended by itself: says so, and starts it again."""
        with self._lock:
            for child in [child for child in self._usurped if child.exit_code is not None]:
                self._usurped.remove(child)  # as it should
            if not self.wanted:
                return None
            ended: Ended | None = None
            if self._child is not None:
                if self._child.exit_code is None:
                    return None
                reason, message = self._why(self._child)
                ended = Ended(time.monotonic(), self.name, reason, message)
                self._child = None
            time.sleep(_RESTART_SECONDS)
            try:
                self.start()
            except MachineError as error:
                ended = ended or Ended(time.monotonic(), self.name, "NOT_STARTED", error.message)
            return ended

    def _signal(self, number: int) -> None:
        with self._lock:
            for child in (*self._usurped, self._child):
                if child is not None and child.exit_code is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child.pid, number)


def _crashed(child: Child) -> tuple[str, str]:
    return f"EXIT_{child.exit_code}", last_words(child.output())


class Watch:
    """Starts again what ends by itself, and notes it, in a thread of its own."""

    def __init__(self, processes: Sequence[Managed], note: Callable[[Ended], None]) -> None:
        self._processes = processes
        self._note = note
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=(process,), name=f"fault-watch-{process.name}", daemon=True)
            for process in processes
        ]
        for thread in self._threads:
            thread.start()

    def _watch(self, process: Managed) -> None:
        while not self._closed.wait(_POLL_SECONDS):
            ended = process.revived()
            if ended is not None:
                self._note(ended)

    def close(self) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join()
