"""Control groups of Linux's, version 1 or 2: what a container with a limit of memory, or of processors, is in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
# Short: a process that has had its share stands still until the next one begins.
_PERIOD_US = 20_000


class ControlGroup:
    """One that is there. Bytes throughout."""

    def __init__(self, folder: Path, *, unified: bool) -> None:
        self._folder = folder
        self._unified = unified

    @property
    def processes(self) -> Path:
        """A process goes into the group by writing its id here."""
        return self._folder / "cgroup.procs"

    def pids(self) -> list[int]:
        """Of the processes in it."""
        return [int(line) for line in self.processes.read_text().split()]

    def working_set(self) -> int:
        """As the kubelet counts it: what is used, without file pages that nobody has looked at for a while."""
        used = int((self._folder / ("memory.current" if self._unified else "memory.usage_in_bytes")).read_text())
        return used - self.statistics()["inactive_file" if self._unified else "total_inactive_file"]

    def statistics(self) -> dict[str, int]:
        """The kernel's own figures, by their names."""
        lines = (self._folder / "memory.stat").read_text().splitlines()
        return {name: int(number) for name, number in (line.split() for line in lines)}

    def killed(self) -> int:
        """How many processes the kernel has killed, for the group was full."""
        text = (self._folder / ("memory.events" if self._unified else "memory.oom_control")).read_text()
        return next(int(number) for name, number in (line.split() for line in text.splitlines()) if name == "oom_kill")


@contextlib.contextmanager
def control_group(limit: int) -> Iterator[ControlGroup]:
    """One with a limit, without swap; at the end no process may be left in it."""
    with _made("memory") as (folder, unified):
        (folder / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(limit))
        yield ControlGroup(folder, unified=unified)


@contextlib.contextmanager
def processor_group(cores: float) -> Iterator[Path]:
    """One whose processes have the time of so many processors together. A process goes into it by writing its id into
    the file; at the end none may be left in it."""
    quota = round(cores * _PERIOD_US)
    with _made("cpu") as (folder, unified):
        if unified:
            (folder / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))
        yield folder / "cgroup.procs"


@contextlib.contextmanager
def _made(controller: str) -> Iterator[tuple[Path, bool]]:
    """The folder of a new group, and whether it is of version 2, where all controllers share one."""
    unified = (_ROOT / "cgroup.controllers").exists()
    folder = (_ROOT if unified else _ROOT / controller) / f"keyhole-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder, unified
    finally:
        folder.rmdir()
