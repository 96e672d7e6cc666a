"""All ways to read at once while a state is written and its key groups move: whether memory, file descriptors and
threads stay as they are, and no read fails.

    uv run python -m benchmarks.soak [--minutes 30] [--servers 3] [--ways get scan watch mirror]

Each key group has an owner and a standby. The real coordinator commits an epoch of 200 rows of 5,000 three times a
second, and some key groups move to another server every ten seconds. A process of readers looks up keys, alone and a
hundred at once (`get`), scans and aggregates the state, watches keys and all of it, and mirrors it.

Prints a line of JSON a minute, and one for all. That has, by process, six means of the memory that is its own (MiB),
one for each sixth of the time, and of its file descriptors and threads the most in each sixth.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.cluster import Cluster, cluster
from benchmarks.failover import KEY_GROUPS, KEYS, feeding, wait_until
from benchmarks.loading import APPLICATION
from keyhole import AsyncClient, Client, field
from keyhole.errors import KeyholeError
from keyhole.model.read import Role
from keyhole.rpc.moving import move
from keyhole.rpc.server import run

SAMPLE_SECONDS, MOVE_SECONDS, TIMEOUT_SECONDS = 2.0, 10.0, 20.0
MOVED_AT_ONCE = 2
PARTS = 6
WAYS = ("get", "scan", "watch", "mirror")
_LAST = 20_000
"""Of so many lookups the percentiles are."""


def main() -> None:
    """Prints a line of JSON a minute, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="to read")
    parser.add_argument("--reader", nargs=2, metavar=("PROXY", "STATE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reader:
        proxy, state = options.reader
        run(read(proxy, state, options.ways))
        return
    with cluster(options.servers) as running, feeding(running, standbys=1) as state:
        wait_until(lambda: _owned(running, state) == KEY_GROUPS, "owner of each key group")
        with reading(running, state, options.ways) as reader, moving(running, state) as moved:
            samples = sampled({**running.pids, "readers": reader.pid}, 60 * options.minutes, reader.told, moved)
        found = {"reads": reader.told, "moves": moved.asked, "owners_changed": moved.changed}
        print(json.dumps({"benchmark": "soak", "minutes": options.minutes, **found, **summary(samples)}))


class Sample(NamedTuple):
    """Of one process at one time."""

    own_mib: float
    descriptors: int
    threads: int


class Reader:
    """The process of readers.

    Attributes:
        told: What it said last, once a second: by way to read how many, what failed, milliseconds of a lookup.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        self.told: dict[str, Any] = {}
        self._process = process
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.told.update(json.loads(line))

    def check(self) -> None:
        """Raises RuntimeError: it has ended."""
        if self._process.poll() is not None:
            raise RuntimeError("the process of readers has ended; see above")


@contextmanager
def reading(running: Cluster, state: str, ways: Sequence[str]) -> Iterator[Reader]:
    """From its first reads on."""
    command = [sys.executable, "-m", "benchmarks.soak", "--reader", running.proxy, state, "--ways", *ways]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            reader = Reader(process)

            def begun() -> bool:
                reader.check()
                return bool(reader.told)

            wait_until(begun, "first word of the readers")
            yield reader
            reader.check()
        finally:
            process.kill()


class Moves:
    """Has key groups move from server to server, until it is stopped.

    Attributes:
        asked: Key groups that servers were asked to want.
        changed: Times that a key group was seen with another owner than before.
    """

    def __init__(self, running: Cluster, state: str) -> None:
        self.asked = self.changed = 0
        self.failure: BaseException | None = None
        self.stopped = threading.Event()
        self._running, self._state = running, state
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        wants: dict[int, str] = {}
        before = _owners(self._running, self._state)
        try:
            for turn in itertools.count():
                if self.stopped.wait(MOVE_SECONDS):
                    return
                to = self._running.servers[turn % len(self._running.servers)]
                groups = random.sample(range(KEY_GROUPS), MOVED_AT_ONCE)
                move(to, APPLICATION, self._state, groups, query=self._state, timeout_seconds=TIMEOUT_SECONDS)
                for group in groups:
                    if wants.get(group, to) != to:
                        move(
                            wants[group],
                            APPLICATION,
                            self._state,
                            [group],
                            undo=True,
                            timeout_seconds=TIMEOUT_SECONDS,
                        )
                    wants[group] = to
                self.asked += len(groups)
                now = _owners(self._running, self._state)
                self.changed += sum(before.get(group, owner) != owner for group, owner in now.items())
                before |= now
        except BaseException as error:
            self.failure = error
            raise


@contextmanager
def moving(running: Cluster, state: str) -> Iterator[Moves]:
    """While it is open."""
    moves = Moves(running, state)
    moves.thread.start()
    try:
        yield moves
    finally:
        moves.stopped.set()
        moves.thread.join()
    if moves.failure is not None:
        raise moves.failure


def _owners(running: Cluster, state: str) -> dict[int, str]:
    """By key group, of those that have one now."""
    with Client(running.proxy, timeout=TIMEOUT_SECONDS) as client:
        return {
            group: holding.server
            for server in client.status()
            for holding in server.holdings
            if holding.descriptor.state == state and holding.source.role is Role.OWNER and holding.ready
            for group in holding.key_groups
        }


def _owned(running: Cluster, state: str) -> int:
    return len(_owners(running, state))


def sampled(pids: Mapping[str, int], seconds: float, told: Mapping[str, Any], moves: Moves) -> list[dict[str, Sample]]:
    """What each process has, every two seconds for so long. Prints a line each minute."""
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}
    samples: list[dict[str, Sample]] = []
    began = time.monotonic()
    next_line = 60.0
    while (gone := time.monotonic() - began) < seconds:
        samples.append({name: sample(process) for name, process in processes.items()})
        if gone >= next_line:
            next_line += 60.0
            own = {name: round(of.own_mib, 1) for name, of in samples[-1].items()}
            line = {"minute": round(gone / 60), "own_mib": own, "owners_changed": moves.changed, **told}
            print(json.dumps({"benchmark": "soak", **line}), flush=True)
        time.sleep(SAMPLE_SECONDS)
    return samples


def sample(process: psutil.Process) -> Sample:
    """Now. Pages of files that it maps, as LMDB's, are the kernel's to keep or drop, and are left out."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (own,) = (line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:"))
    return Sample(int(own) / 1024, process.num_fds(), process.num_threads())


def summary(samples: Sequence[Mapping[str, Sample]]) -> dict[str, dict[str, list[float]]]:
    """By figure and process, one for each sixth of the time."""
    size = max(1, len(samples) // PARTS)
    parts = [samples[at * size : (at + 1) * size] for at in range(PARTS)]

    def of(name: str, figure: Callable[[Sequence[Sample]], float]) -> list[float]:
        return [round(figure([one[name] for one in part]), 1) for part in parts if part]

    return {
        "own_mib": {name: of(name, lambda some: statistics.fmean(one.own_mib for one in some)) for name in samples[0]},
        "descriptors": {name: of(name, lambda some: max(one.descriptors for one in some)) for name in samples[0]},
        "threads": {name: of(name, lambda some: max(one.threads for one in some)) for name in samples[0]},
    }


class Counts:
    """What the readers have read."""

    def __init__(self) -> None:
        self.read: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.lookup_ms: deque[float] = deque(maxlen=_LAST)

    def told(self) -> dict[str, Any]:
        """For the process that has begun this one."""
        cuts = statistics.quantiles(self.lookup_ms, n=100) if len(self.lookup_ms) > 1 else []
        times = {"p50": round(cuts[49], 2), "p99": round(cuts[98], 2)} if cuts else {}
        return {"read": dict(self.read), "failed": dict(self.failed), "lookup_ms": times}


async def read(proxy: str, state: str, ways: Sequence[str]) -> None:
    """The process of readers, until it is killed."""
    counts = Counts()
    async with AsyncClient(proxy, timeout=TIMEOUT_SECONDS) as client, asyncio.TaskGroup() as readers:
        again = partial(_again, counts)
        begun: list[Coroutine[Any, Any, None]] = []
        if "get" in ways:
            begun += [again("get", partial(_lookup, client, state, counts), 0.005) for _ in range(8)]
            begun.append(again("get_many", partial(_hundred, client, state), 0.1))
        if "scan" in ways:
            begun.append(again("scan_all", partial(_scan, client, state), 2.0))
            begun.append(again("aggregate", partial(_aggregate, client, state), 2.0))
        if "watch" in ways:
            begun += [_watch(client, state, counts, f"sensor-{number}") for number in range(50)]
            begun += [_watch(client, state, counts) for _ in range(2)]
        if "mirror" in ways:
            begun.append(_mirror(client, state, counts))
        for reader in begun:
            readers.create_task(reader)
        while True:
            print(json.dumps(counts.told()), flush=True)
            await asyncio.sleep(1.0)


async def _again(counts: Counts, name: str, one: Callable[[], Awaitable[None]], pause: float) -> None:
    while True:
        with _counted(counts, name):
            await one()
        await asyncio.sleep(pause)


@contextmanager
def _counted(counts: Counts, name: str) -> Iterator[None]:
    try:
        yield
    except KeyholeError as error:
        counts.failed[f"{name}: {error.reason}"] += 1
    else:
        counts.read[name] += 1


def _key() -> str:
    return f"sensor-{random.randrange(KEYS)}"


async def _lookup(client: AsyncClient, state: str, counts: Counts) -> None:
    began = time.perf_counter()
    await client.get(APPLICATION, state, _key())
    counts.lookup_ms.append(1000 * (time.perf_counter() - began))


async def _hundred(client: AsyncClient, state: str) -> None:
    await client.get_many(APPLICATION, state, [_key() for _ in range(100)])


async def _scan(client: AsyncClient, state: str) -> None:
    found = 0
    async for _ in client.scan_all(APPLICATION, state):
        found += 1
    assert found == KEYS


async def _aggregate(client: AsyncClient, state: str) -> None:
    assert await client.count(APPLICATION, state, where=field("readings") >= 0) == KEYS


async def _watch(client: AsyncClient, state: str, counts: Counts, *keys: str) -> None:
    name = "watch of a key" if keys else "watch of all"
    while True:
        with _counted(counts, name):
            async with client.watch(APPLICATION, state, *keys) as changes:
                async for _ in changes:
                    counts.read[f"{name}: changes"] += 1


async def _mirror(client: AsyncClient, state: str, counts: Counts) -> None:
    while True:
        with _counted(counts, "mirror"):
            async with client.mirror(f"{APPLICATION}/{state}", timeout=TIMEOUT_SECONDS) as mirror:
                while True:
                    mirror.get_many([_key() for _ in range(100)])
                    counts.read["mirror: get_many"] += 1
                    await asyncio.sleep(0.1)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
