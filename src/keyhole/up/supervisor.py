"""`python -m keyhole.up.supervisor`: the process in the background that starts all, keeps it up, and ends it.

All others are its children, and end with it, however it ends (keyhole.local.processes).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from keyhole.demo.signals import StopSignals
from keyhole.errors import KeyholeError
from keyhole.hints import ready
from keyhole.local.base_stack import BaseStack, StopSeconds
from keyhole.local.java import Java
from keyhole.local.stack_ports import StackPorts
from keyhole.up.home import Home, Recorded
from keyhole.up.known_process import process_of

LEFTOVER_SECONDS = 10.0
# A state server that drains waits for another one to take its key groups over: here they all end.
STOP_SECONDS = StopSeconds(kafka=30.0, server=3.0, proxy=6.0, exporter=3.0, others=0.0)
_LOOK_SECONDS = 0.5


@ready
class WantedStack(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be started. `java` and `jars` are paths; `topics` are made, with so many partitions."""

    ports: StackPorts
    ephemeral: bool
    java: str
    java_version: int
    jars: tuple[str, ...]
    topics: dict[str, int] = {}


@ready
class UpReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line to whoever has started it: what it starts now, that all serves, or why it has failed."""

    starting: str = ""
    serves: bool = False
    failure: str = ""


def run(
    home: Home,
    wanted: WantedStack,
    environ: Mapping[str, str],
    signals: StopSignals,
    tell: Callable[[UpReport], None],
) -> None:
    """Starts all and keeps it up until a signal comes, or the folder is gone; then nothing of it runs any more.

    Raises:
        KeyholeError: Something did not come up, or has ended too often. It is recorded, too.
    """
    with home.held() as still_there:
        before = home.read()
        if before is not None:
            end_leftovers(before)
        notes = _Notes(home, wanted, still_there)

        def say(what: str) -> None:
            notes.take()
            tell(UpReport(starting=what))

        serving = notes.serving = BaseStack(
            [Path(jar) for jar in wanted.jars],
            Java(Path(wanted.java), wanted.java_version),
            environ,
            say,
            STOP_SECONDS,
            directory=None if wanted.ephemeral else home.data,
            logs=home.logs,
            uninterrupted=signals.deferred,
        )
        failure = ""
        try:
            with serving:
                try:
                    notes.take()
                    serving.serve(wanted.ports, wanted.topics)
                    notes.take(serves=True)
                    tell(UpReport(serves=True))
                    with signals.gently():
                        while still_there() and not signals.came.wait(_LOOK_SECONDS):
                            serving.supervise()
                            notes.take(serves=True)
                finally:
                    # The end is short, and a second signal must not leave things behind.
                    signals.ignore()
        except KeyboardInterrupt:
            pass
        except KeyholeError as error:
            failure = error.message
            raise
        finally:
            notes.ended(failure)


def end_leftovers(recorded: Recorded) -> None:
    """What a supervisor that was killed has started ends with it: waits for that, and helps where it does not."""
    for process in recorded.children.values():
        if not process.wait(LEFTOVER_SECONDS):
            process.kill_group()
            process.wait(LEFTOVER_SECONDS)


class _Notes:
    """What is recorded of a run, and written where it has changed."""

    def __init__(self, home: Home, wanted: WantedStack, still_there: Callable[[], bool]) -> None:
        self.serving: BaseStack | None = None
        self._home = home
        self._still_there = still_there
        supervisor = process_of(os.getpid())
        data = "" if wanted.ephemeral else str(home.data)
        self._recorded = Recorded(ports=wanted.ports, data=data, ephemeral=wanted.ephemeral, supervisor=supervisor)
        home.write(self._recorded)

    def take(self, *, serves: bool = False) -> None:
        """Of what runs now. Raises MachineError."""
        assert self.serving is not None
        known = {process.pid: process for process in self._recorded.children.values()}
        children = {name: known.get(pid) or process_of(pid) for name, pid in self.serving.processes.items()}
        ports = self.serving.ports if serves else self._recorded.ports
        data = str(self.serving.directory)
        self._write(msgspec.structs.replace(self._recorded, children=children, ports=ports, data=data, serves=serves))

    def ended(self, failure: str) -> None:
        """Of the end. A folder that is gone is left so."""
        over = msgspec.structs.replace(self._recorded, supervisor=None, children={}, serves=False, failure=failure)
        with contextlib.suppress(KeyholeError):
            self._write(over)

    def _write(self, recorded: Recorded) -> None:
        if recorded != self._recorded and self._still_there():
            self._home.write(recorded)
            self._recorded = recorded


def main(arguments: list[str], environ: Mapping[str, str]) -> int:
    """Returns the exit code. Arguments: the folder, and what is wanted, in JSON."""
    wanted = msgspec.json.decode(arguments[1], type=WantedStack)
    try:
        with StopSignals() as signals:
            run(Home(Path(arguments[0])), wanted, environ, signals, _tell)
    except KeyholeError as error:
        _tell(UpReport(failure=error.message))
        return 1
    return 0


def _tell(report: UpReport) -> None:
    """To whoever listens, and to the log."""
    what = report.failure or ("all serves" if report.serves else f"starting {report.starting}")
    sys.stderr.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {what}\n")
    sys.stderr.flush()
    # A command that was broken off listens no more.
    with contextlib.suppress(OSError):
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.flush()
    if report.serves:
        # Whoever listens need not wait for our end.
        with open(os.devnull, "wb") as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
