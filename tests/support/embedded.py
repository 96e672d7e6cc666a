"""`keyhole demo` and `keyhole job` as a person runs them, and what they must not leave behind."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import psutil

from keyhole.local.ports import is_free

KEYHOLE = [sys.executable, "-m", "keyhole.cli.main"]


def environ(tmp_path: Path, **settings: str) -> dict[str, str]:
    """A temporary folder of the test's own, to see what is left in it."""
    return {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "120", **settings}


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
    told = r"(?:starting (?:state server on |client proxy on |metrics on http://)|HTTP on http://)127\.0\.0\.1:(\d+)"
    return [int(port) for port in re.findall(told, output)]


def assert_nothing_is_left(tmp_path: Path, output: str) -> None:
    """No process, no file but the test's own log, and no port that is still taken."""
    assert processes_of(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir() if path.name != "demo.log"] == []
    assert [port for port in ports_in(output) if not is_free(port)] == []
