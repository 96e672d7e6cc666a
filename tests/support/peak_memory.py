"""How much memory another process takes while something goes on."""

from __future__ import annotations

import re
import threading
from pathlib import Path


class PeakMemory:
    """The most memory that a process had of its own, without the pages of mapped files, while this was entered."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.bytes = 0
        self.before = self._now()

    def _now(self) -> int:
        found = re.search(r"RssAnon:\s+(\d+) kB", self._status.read_text())
        assert found is not None
        return int(found[1]) << 10

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.bytes = max(self.bytes, self._now())

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
