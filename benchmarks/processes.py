"""What processes take of the machine: processor time and memory, by what they are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import psutil

SPARK = "spark"


class Usage(NamedTuple):
    """By name. Memory is resident; pages that processes share (forked Python workers, mapped files) count in each."""

    cpu_seconds: Mapping[str, float]
    rss_bytes: Mapping[str, int]

    def since(self, before: Usage) -> dict[str, float]:
        """Processor seconds between the two."""
        return {name: seconds - before.cpu_seconds.get(name, 0.0) for name, seconds in self.cpu_seconds.items()}


class Processes:
    """Those that were started from here.

    Args:
        pids: By name: processes that count with all that they have started. All others below this one, and itself, are
            Spark's: the driver, its JVM (in local mode the executor too), and the Python workers.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        # By name, process id and start: what a process had taken when it was last seen.
        self._taken: dict[str, dict[tuple[int, float], float]] = {}

    def usage(self) -> Usage:
        """Now. What has ended counts with what it had taken when this was last called."""
        rss: dict[str, int] = {}
        for name, processes in self._by_name():
            rss[name] = 0
            taken = self._taken.setdefault(name, {})
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess), process.oneshot():
                    times = process.cpu_times()
                    taken[process.pid, process.create_time()] = times.user + times.system
                    rss[name] += process.memory_info().rss
        return Usage({name: sum(taken.values()) for name, taken in self._taken.items()}, rss)

    def _by_name(self) -> Iterator[tuple[str, list[psutil.Process]]]:
        named: set[int] = set()
        for name, pid in self._pids.items():
            tree = _tree(pid)
            named |= {process.pid for process in tree}
            yield name, tree
        yield SPARK, [process for process in _tree(psutil.Process().pid) if process.pid not in named]


def _tree(pid: int) -> list[psutil.Process]:
    """Nobody, where it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
