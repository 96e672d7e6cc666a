"""A line that says how far a run is: rewritten in place on a terminal, elsewhere one from time to time.

A pytest plugin (tests/conftest.py loads it), in place of pytest's dots. With -v pytest tells each test
itself, and this is silent.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from typing import Any

import pytest

# Between two lines where there is no terminal, whose reader looks at them later.
_LOG_SECONDS = 20.0
# A terminal is written to no more often.
_TERMINAL_SECONDS = 0.1


def pytest_sessionstart(session: pytest.Session) -> None:
    """Only where the run is reported: not in pytest-xdist's processes."""
    config = session.config
    if not hasattr(config, "workerinput") and config.option.verbose == 0 and not config.option.collectonly:
        progress = Progress(config.pluginmanager.getplugin("terminalreporter"))
        config.pluginmanager.register(progress, "keyhole-progress")
        # Not beside tests: some of them count threads.
        if getattr(config.option, "numprocesses", None):
            progress.tick()


class Progress:
    """Counts tests as they begin and end. Any thread."""

    def __init__(self, reporter: Any) -> None:
        self._reporter = reporter
        reporter.showfspath = False
        self._began = time.monotonic()
        self._total = 0
        self._counts: Counter[str] = Counter()
        self._running: dict[str, None] = {}
        self._written_at = 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._terminal = bool(reporter.isatty)

    def tick(self) -> None:
        """From now on the line goes on while nothing begins or ends: some tests take minutes."""
        threading.Thread(target=self._tick, name="keyhole-progress", daemon=True).start()

    def _tick(self) -> None:
        while not self._ended.wait(1.0):
            if self._total:  # before, pytest-xdist tells how far it is
                self._tell()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """No dots: this line is in their place. Failures are told at once, as always at the end."""
        if report.passed and report.when == "call":
            return "passed", "", ""
        if report.skipped and not hasattr(report, "wasxfail"):
            return "skipped", "", ""
        if report.failed:
            return "failed" if report.when == "call" else "error", "", "FAILED"
        return None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Without pytest-xdist."""
        self._total = len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Each process of pytest-xdist's collects all."""
        self._total = len(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Of a test that begins, in whichever process."""
        self._running[nodeid] = None
        self._tell()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Three for each test."""
        if report.failed:
            self._counts["failed"] += 1
            self._write(f"FAILED {report.nodeid} ({report.when})", lasts=True)
        if report.when == "teardown":
            self._counts["done"] += 1
            self._running.pop(report.nodeid, None)
            self._tell()

    def pytest_sessionfinish(self) -> None:
        """The line gives way to the summary."""
        self._ended.set()
        if self._terminal:
            self._write("")

    def _tell(self) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._written_at < (_TERMINAL_SECONDS if self._terminal else _LOG_SECONDS):
                return
            self._written_at = now
        seconds = int(now - self._began)
        done, failed = self._counts["done"], self._counts["failed"]
        part = f"{100 * done // self._total:3} %" if self._total else "    "
        running = ", ".join(nodeid.removeprefix("tests/") for nodeid in list(self._running))
        self._write(f"{part}  {done} of {self._total}, {failed} failed, {seconds // 60}:{seconds % 60:02}  {running}")

    def _write(self, line: str, *, lasts: bool = False) -> None:
        with self._lock:
            if not self._terminal:
                self._reporter.write_line(line[:200])
            elif lasts:
                self._reporter.rewrite("", erase=True)
                self._reporter.write_line(line)
            else:
                self._reporter.rewrite(line[: shutil.get_terminal_size().columns - 1], erase=True)
