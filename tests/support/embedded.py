"""`keyhole demo` and `keyhole job` as a person runs them, and what they must not leave behind."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from keyhole.local.ports import is_free
from tests.support.waiting import PATIENCE_SECONDS, until

KEYHOLE = [sys.executable, "-m", "keyhole.cli.main"]


def environ(tmp_path: Path, **settings: str) -> dict[str, str]:
    """A temporary folder of the test's own, to see what is left in it."""
    return {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "120", **settings}


def ran(
    command: Sequence[str], settings: Mapping[str, str], seconds: float, directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """A command at its end, whatever its exit code; where it comes to none in time, what it has said is told."""
    try:
        return subprocess.run(
            command, cwd=directory, env=settings, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        said = b"\n".join(of for of in (error.stdout, error.stderr) if isinstance(of, bytes)).decode(errors="replace")
        raise AssertionError(f"{command} has not ended within {seconds:.0f} s, and has said:\n{said}") from None


def processes_of(tmp_path: Path) -> list[str]:
    """All processes that have the folder in their command line or as their own temporary folder."""
    found = []
    for process in psutil.process_iter():
        try:
            command, temporary = " ".join(process.cmdline()), process.environ().get("TMPDIR", "")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if str(tmp_path) in command or temporary.startswith(str(tmp_path)):
            found.append(command)
    return found


def ports_in(output: str) -> list[int]:
    """Of the state server, of the proxy, its HTTP port and the metrics exporter, as they were printed."""
    started = r"(?:starting (?:state server on |client proxy on |metrics on http://)|HTTP on http://)127\.0\.0\.1:(\d+)"
    return [int(port) for port in re.findall(started, output)]


def still_there(tmp_path: Path, output: str) -> list[str]:
    """The processes of the folder, and the ports that were printed and are taken: but for those of other tests by now,
    as every stack tries the same ones first."""
    others = _taken_by_others(tmp_path)
    taken = [port for port in ports_in(output) if not is_free(port) and port not in others]
    return [*processes_of(tmp_path), *(f"port {port}" for port in taken)]


def _taken_by_others(tmp_path: Path) -> set[int]:
    found = set()
    for of in psutil.net_connections("tcp"):
        if of.status == psutil.CONN_LISTEN and of.pid is not None:
            with contextlib.suppress(psutil.Error):
                # One that dies has given up its environment, and may be ours. A process of tests that holds a port
                # has one, which need not have a TMPDIR.
                given = psutil.Process(of.pid).environ()
                if given and not given.get("TMPDIR", "").startswith(str(tmp_path)):
                    found.add(of.laddr.port)
    return found


def assert_none_lives(tmp_path: Path) -> None:
    """No process of the folder: one whose group was sent SIGKILL may die a moment after who sent it has ended."""
    until(lambda: not processes_of(tmp_path), PATIENCE_SECONDS, 0.05, lambda: processes_of(tmp_path))


def assert_nothing_is_left(tmp_path: Path, output: str) -> None:
    """No process, no file but the test's own log, and no port that is still taken. What was sent SIGKILL dies a moment
    later, and gives up its sockets last."""
    until(lambda: not still_there(tmp_path, output), PATIENCE_SECONDS, 0.05, lambda: still_there(tmp_path, output))
    assert [path.name for path in tmp_path.iterdir() if path.name != "demo.log"] == []
