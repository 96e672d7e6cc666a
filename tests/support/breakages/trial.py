"""Makes a breakage in a copy of the tree, and runs the tests that should notice it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.support.breakages.breakage import ROOT, Breakage, UnfitError

Outcome = Literal["noticed", "survived", "error"]

_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?::.+?)(?: - .*)?$", re.MULTILINE)
_PASSED, _SOME_FAILED = 0, 1
# All tiers, in one process.
_OPTIONS = ("-q", "-n0", "-m", "", "--tb=no", "-rfE", "--color=no", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Verdict:
    """What became of one breakage. `by`: the test that noticed it, or what went wrong."""

    breakage: Breakage
    outcome: Outcome
    by: str
    seconds: float


class Tree:
    """A copy of the working tree, with what is not committed, in which anything may be broken. One thread at a time.

    Processes in it import the copy's modules: PYTHONPATH comes before what an editable install says.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
        _copy(ROOT, root)
        self._check()

    def try_out(self, breakage: Breakage, limit_seconds: float) -> Verdict:
        """Breaks it, runs the tests, and puts it back."""
        begun = time.monotonic()
        try:
            outcome, by = self._tried(breakage, limit_seconds)
        except UnfitError as error:
            outcome, by = "error", str(error)
        return Verdict(breakage, outcome, by, time.monotonic() - begun)

    def _tried(self, breakage: Breakage, limit_seconds: float) -> tuple[Outcome, str]:
        path = self._root / breakage.file
        whole = path.read_text()
        tests = breakage.selected(self._root)
        _write(path, breakage.made_in(whole))
        try:
            code, said = self._pytest(tests, limit_seconds)
        finally:
            _write(path, whole)
        return judged(code, said)

    def failing(self, tests: Sequence[str], limit_seconds: float) -> set[str]:
        """Those that fail though nothing is broken. Raises RuntimeError where that can't be told."""
        code, said = self._pytest(tests, limit_seconds, stop=False) if tests else (_PASSED, "")
        failed = {found[1] for found in _FAILED.finditer(said)}
        if code != _PASSED and not (code == _SOME_FAILED and failed):
            raise RuntimeError(f"the tests can't be run on the tree as it is: {said[-2000:]}")
        return failed

    def _pytest(self, tests: Sequence[str], limit_seconds: float, *, stop: bool = True) -> tuple[int | None, str]:
        options = [*_OPTIONS, "-x"] if stop else _OPTIONS
        return self._run([sys.executable, "-m", "pytest", *options, *tests], limit_seconds)

    def _run(self, command: Sequence[str], limit_seconds: float) -> tuple[int | None, str]:
        """The exit code, None where it took too long, and what was said."""
        process = subprocess.Popen(
            command,
            cwd=self._root,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        return process.returncode, said

    def _check(self) -> None:
        names = "keyhole", "services", "jobs", "tests"
        code, said = self._run(
            [sys.executable, "-c", f"import {', '.join(names)}; print(*(of.__file__ for of in ({', '.join(names)})))"],
            60,
        )
        if code != 0 or not all(Path(file).is_relative_to(self._root) for file in said.split()):
            raise RuntimeError(f"the copy's modules are not those that would be imported: {said}")


def judged(code: int | None, said: str) -> tuple[Outcome, str]:
    """What a run of pytest says of a breakage.

    Args:
        code: Its exit code; None: it took too long.
        said: What it printed, with the short summary of what failed.
    """
    if code is None:
        return "error", "the tests took too long"
    if code == _PASSED:
        return "survived", "none of its tests failed"
    failed = _FAILED.search(said)
    if code == _SOME_FAILED and failed is not None:
        return "noticed", failed[1]
    # Also a module that can't be imported: anything would notice that.
    return "error", " ".join(said.split()[-60:])


def _copy(root: Path, to: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():  # else it was deleted, and that isn't committed
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    # Python compares times in seconds, and sizes: what is compiled could be taken for that of the text before.
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()
