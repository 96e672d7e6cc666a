"""A job's file while somebody works at it: whether it has changed, and whether Python can read it."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keyhole.errors import InvalidConfiguration

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Of each file that is watched: when it was written, its size and its number; None: it is not there."""


@dataclass(frozen=True)
class JobText:
    """What the file, and those watched with it, are at one moment.

    Attributes:
        digest: Of the content of all; empty: the job's file is gone.
        problem: Why Python can't run the job's file, in one line; empty: it can be tried.
    """

    digest: str
    problem: str = ""


class JobFile:
    """The file of a job, and others whose change starts it anew. Each call looks at the disk.

    Args:
        path: As a person has given it.
        more: Watched beside it.

    Raises:
        InvalidConfiguration: One of them is not there, or is no file.
    """

    def __init__(self, path: Path, more: Sequence[Path] = ()) -> None:
        self.path = path
        self._all = (path, *more)
        for file in self._all:
            if not file.is_file():
                what = "is a folder" if file.is_dir() else "is not there"
                wanted = "name the file of a job. `keyhole new DIR` makes one"
                if file is not path:
                    wanted = "--watch takes a file that the job reads, by its path from here"
                raise InvalidConfiguration(f"{file} {what}: {wanted}")

    def stamp(self) -> Stamp:
        """What is cheap to look at, and other after each change."""
        return tuple(map(_stamp, self._all))

    def read(self) -> JobText:
        """What the files are now."""
        name = self.path.name
        digest = hashlib.sha256()
        for file in self._all:
            try:
                content = file.read_bytes()
            except FileNotFoundError:
                content = b""
                if file is self.path:
                    return JobText("", f"{name} is gone")
            except OSError as error:
                return JobText(digest.hexdigest(), f"{file} can't be read ({(error.strerror or '?').lower()})")
            digest.update(len(content).to_bytes(8, "big") + content)
        return JobText(digest.hexdigest(), _problem(self.path))


class Settling:
    """Finds out when what is looked at again and again has changed, and then stayed as it is for a while: an editor may
    write a file in several steps. Pure.

    Args:
        seen: What it is in the beginning.
        seconds: For how long it must stay.
    """

    def __init__(self, seen: object, seconds: float) -> None:
        self._settled = self._last = seen
        self._seconds = seconds
        self._since = 0.0

    def changed(self, seen: object, now: float) -> bool:
        """Whether it has come to rest as another one than the last time. `now`: seconds, never less than before."""
        if seen != self._last:
            self._last, self._since = seen, now
        if seen == self._settled or now - self._since < self._seconds:
            return False
        self._settled = seen
        return True


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _problem(path: Path) -> str:
    """Of a file that Python can't read as a program, without running it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(path.read_bytes(), path, "exec", dont_inherit=True)
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        return f"{path.name}{line}: {error.msg}"
    except (ValueError, OSError) as error:  # a NUL in it; or it is gone by now
        return f"{path.name}: {error}"
    return ""
