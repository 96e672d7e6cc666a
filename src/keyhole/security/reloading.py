"""What is made of files, and made again when they change: certificates, tokens, policies, all without a restart."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from keyhole.errors import KeyholeError

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

LOOK_SECONDS = 1.0

_Signature = tuple[tuple[int, int, int] | None, ...]


class Reloading(Generic[_T]):
    """A value made of files. Thread-safe; looks at the files at most once per `every_seconds`, when it is asked.

    Files that can't be used any more (half written, a key that doesn't fit) change nothing: the last good value stays,
    and the log says what is wrong, once per change. Kubernetes swaps all files of a Secret at once through a symbolic
    link, which this follows.

    Args:
        what: For the log.
        load: Makes the value; raises KeyholeError with what is wrong.
        paths: What it reads.

    Raises:
        KeyholeError: What `load` raises, the first time.
    """

    def __init__(
        self, what: str, load: Callable[[], _T], paths: Sequence[str], every_seconds: float = LOOK_SECONDS
    ) -> None:
        self._what = what
        self._load = load
        self._paths = tuple(Path(path) for path in paths)
        self._every_seconds = every_seconds
        self._lock = threading.Lock()
        self._seen = self._signature()
        self._value = load()
        self._version = 0
        self._next = time.monotonic() + every_seconds

    def get(self) -> _T:
        """The value as the files have it now, or had it last when they could be used."""
        return self.versioned()[0]

    def versioned(self) -> tuple[_T, int]:
        """What was read last, with a number that grows whenever it changes."""
        if time.monotonic() >= self._next:
            with self._lock:
                self._look()
        return self._value, self._version

    def _look(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._every_seconds
        seen = self._signature()
        if seen == self._seen:
            return
        try:
            value = self._load()
        except Exception as error:  # noqa: BLE001 - what is wrong with a file must not fail the call that looked at it
            if self._signature() == seen:  # else they are just being written: look again
                self._seen = seen
            why = error.message if isinstance(error, KeyholeError) else type(error).__name__
            _log.error("%s can't be used; going on with the last good one", self._what, extra={"reason": why})
            return
        self._seen, self._value = seen, value
        self._version += 1
        _log.info("%s reloaded", self._what, extra={"paths": [str(path) for path in self._paths]})

    def _signature(self) -> _Signature:
        return tuple(map(_stat, self._paths))


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
