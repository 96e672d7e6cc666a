"""How much memory a process takes, now and while something goes on. Benchmarks measure with it, too."""

from __future__ import annotations

import re
import threading
from pathlib import Path


def own_bytes(pid: int) -> int:
    """What the process takes now, without the pages of mapped files, as its store's are. Linux only."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


class PeakMemory:
    """The most memory that a process had of its own, without the pages of mapped files, while this was entered."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.bytes = 0
        self.before = own_bytes(pid)

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.bytes = max(self.bytes, own_bytes(self._pid))

    def grown(self) -> int:
        """How much more than before it had at most, up to now, in bytes. While the process lives."""
        return max(self.bytes, own_bytes(self._pid)) - self.before

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
