"""Watches: from a commit to its watcher beside a poll by `get`, and what watchers cost commits, lookups and memory.

    uv run python -m benchmarks.watches [--only delay commits idle] [--repeats 3] [--epochs 40]

A real Kafka, one state server, a proxy, the real coordinator, which commits an epoch of 200 rows of 5,000 four times a
second. All readers are in processes of their own.

- delay: milliseconds from the end of an epoch's commit until a watch of one key, and one who polls that key by `get`,
  have it; both in one process and one run, at the server and by way of the proxy.
- commits: how long a commit takes, and how many lookups a second another process makes one after the other, without
  watchers and with them, in turn. The ratios are of one run: 1 is as fast as without. Beside it the milliseconds of the
  server's processor time for an epoch, which say what of it is the server's.
- idle: the server's resident memory with so many watches of one key each, and a minute later.

Prints a line of JSON for each.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil

from benchmarks.cluster import Cluster, cluster
from benchmarks.loading import APPLICATION, Loader, descriptor, rows
from keyhole import AsyncClient
from keyhole.local.processes import Child
from keyhole.rpc.channels import aio_channel
from keyhole.rpc.convert import key_to_proto
from keyhole.rpc.server import run
from keyhole.v1 import query_pb2 as pb

PROBE = "probe"
KEY_GROUPS, KEYS, CHANGED = 16, 5_000, 200
EPOCH_SECONDS, POLL_SECONDS, LOOK_SECONDS = 0.25, 0.001, 0.05
PATIENCE_SECONDS, MINUTE = 300.0, 60.0
WATCHES_PER_CONNECTION = 500
_METHOD = "/keyhole.v1.Query/Watch"
SIDES = {
    "1,000 of one key": (1_000, 0, 0),
    "100 of the whole state": (0, 100, 0),
    "100 of 10 keys, a scan": (0, 0, 100),
}
"""Watches of one key, of the whole state, and of ten keys beside a scan without an end."""
FIGURES = ("delay", "commits", "idle")


def main() -> None:
    """Prints a line of JSON for each figure that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=FIGURES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40, help="of each figure and repeat")
    parser.add_argument("--idle", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--reader", nargs=3, metavar=("KIND", "STATE", "FILE"), help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--counts", type=int, nargs=3, default=(0, 0, 0), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reader:
        kind, state, file = options.reader
        found = run(READERS[kind](options.address, state, Path(file), *options.counts))
        Path(file).write_text(json.dumps(found))
        return
    with cluster() as running:
        if "delay" in options.only:
            for way, address in (("at the server", running.servers[0]), ("by the proxy", running.proxy)):
                print_line(figure="delay", way=way, **delays(running, address, options))
        if "commits" in options.only:
            for side, counts in SIDES.items():
                print_line(figure="commits", watchers=side, **ratios(running, counts, options))
        if "idle" in options.only:
            print_line(figure="idle", **idle(running, options.idle))


def print_line(**line: Any) -> None:
    """Prints one line of JSON."""
    print(json.dumps({"benchmark": "watches", **line}), flush=True)


class Writer(threading.Thread):
    """Commits epochs at a steady pace, until it is stopped.

    Attributes:
        state: Of its own.
        took: Seconds of each commit, staging included; `ended`: when each epoch was complete, by the clock.
    """

    _numbers = itertools.count(1)

    def __init__(self, running: Cluster, sensors: Sequence[str]) -> None:
        super().__init__(name="writer", daemon=True)
        self.state = f"watched-{next(self._numbers)}"
        self.took: list[float] = []
        self.ended: dict[int, float] = {}
        self.failure: BaseException | None = None
        self.stopped = threading.Event()
        self._running, self._sensors = running, sensors
        self.loaded = threading.Event()

    def run(self) -> None:
        of = descriptor(self.state, KEY_GROUPS)
        try:
            with Loader(self._running.bootstrap_servers, self._running.servers, of) as loader:
                loader.epoch(rows(of, [*self._sensors, PROBE], 0))
                self.loaded.set()
                for epoch in itertools.count(1):
                    began = time.monotonic()
                    loader.epoch(rows(of, [*random.sample(self._sensors, CHANGED), PROBE], epoch))
                    # The probe's value is the number by which this loop counts.
                    self.ended[epoch] = time.time()
                    self.took.append(time.monotonic() - began)
                    if self.stopped.wait(max(0.0, EPOCH_SECONDS - self.took[-1])):
                        return
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self.loaded.set()


@contextmanager
def writing(running: Cluster) -> Iterator[Writer]:
    """From its first epoch on."""
    writer = Writer(running, [f"sensor-{number}" for number in range(KEYS)])
    writer.start()
    try:
        if not writer.loaded.wait(PATIENCE_SECONDS):
            raise TimeoutError(f"no first epoch within {PATIENCE_SECONDS:g} s")
        yield writer
    finally:
        writer.stopped.set()
        writer.join()
    if writer.failure is not None:
        raise writer.failure


@contextmanager
def reading(running: Cluster, kind: str, state: str, address: str, *counts: int) -> Iterator[Path]:
    """A process of readers, which has begun; what it writes as it is asked to end."""
    name = f"{kind}-{time.monotonic_ns()}"
    file = running.directory / f"{name}.json"
    command = [sys.executable, "-m", "benchmarks.watches", "--reader", kind, state, str(file), "--address", address]
    counted = ["--counts", *map(str, counts)] if counts else []
    child = Child(name, [*command, *counted], running.directory / f"{name}.log", dict(os.environ))
    try:
        child.wait_healthy(lambda: begun(file).exists(), PATIENCE_SECONDS)
        yield file
        if child.exit_code is None:
            ending(file).touch()
            child.wait(PATIENCE_SECONDS)
        if child.exit_code:
            raise RuntimeError(child.output()[-2000:])
    finally:
        child.kill()


def begun(file: Path) -> Path:
    return file.with_suffix(".begun")


def ending(file: Path) -> Path:
    return file.with_suffix(".ending")


def delays(running: Cluster, address: str, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds after the commit, median and 99th percentile."""
    with writing(running) as writer:
        with reading(running, "probe", writer.state, address) as file:
            time.sleep(options.epochs * options.repeats * EPOCH_SECONDS)
        seen = json.loads(file.read_text())
    found: dict[str, Any] = {}
    for name, times in seen.items():
        after = [1000 * (at - writer.ended[int(epoch)]) for epoch, at in times.items() if int(epoch) in writer.ended]
        found[name] = {"median_ms": round(statistics.median(after), 2), "p99_ms": round(percentile(after), 2)}
        found[name]["epochs"] = len(after)
    return found


def percentile(of: Sequence[float]) -> float:
    return statistics.quantiles(of, n=100)[98]


def ratios(running: Cluster, counts: tuple[int, ...], options: argparse.Namespace) -> dict[str, Any]:
    """Without watchers to with them."""
    found: dict[str, list[float]] = {"commits": [], "lookups": [], "commit_ms": [], "cpu_ms": [], "cpu_ms_watched": []}
    with writing(running) as writer:
        for _ in range(options.repeats):
            alone, quiet = pace(running, writer, options.epochs), processor(running, writer, options.epochs)
            with reading(running, "watchers", writer.state, running.servers[0], *counts):
                watched, busy = pace(running, writer, options.epochs), processor(running, writer, options.epochs)
            found["commits"].append(round(alone[0] / watched[0], 3))
            found["lookups"].append(round(watched[1] / alone[1], 3))
            found["commit_ms"].append(round(1000 * alone[0], 1))
            found["cpu_ms"].append(quiet)
            found["cpu_ms_watched"].append(busy)
    return found


def processor(running: Cluster, writer: Writer, epochs: int) -> float:
    """Milliseconds of the server's processor time for an epoch, without lookups."""
    server, before = psutil.Process(running.children[0].pid), len(writer.took)
    began = sum(server.cpu_times()[:2])
    while len(writer.took) < before + epochs and writer.failure is None:
        time.sleep(LOOK_SECONDS)
    return round(1000 * (sum(server.cpu_times()[:2]) - began) / (len(writer.took) - before), 1)


def pace(running: Cluster, writer: Writer, epochs: int) -> tuple[float, float]:
    """The median of a commit's seconds, and lookups a second, while so many epochs come."""
    before = len(writer.took)
    with reading(running, "lookups", writer.state, running.servers[0]) as file:
        while len(writer.took) < before + epochs and writer.failure is None:
            time.sleep(LOOK_SECONDS)
    return statistics.median(writer.took[before:]), json.loads(file.read_text())["per_second"]


def idle(running: Cluster, numbers: Sequence[int]) -> dict[str, Any]:
    """MiB of the server, by the number of watches."""
    server = psutil.Process(running.children[0].pid)

    def resident() -> float:
        return round(server.memory_info().rss / (1 << 20), 1)

    with writing(running) as writer:
        pass
    found: dict[str, Any] = {"0": resident()}
    for number in numbers:
        with reading(running, "watchers", writer.state, running.servers[0], number, 0, 0):
            found[str(number)] = resident()
            time.sleep(MINUTE)
            found[f"{number} a minute later"] = resident()
    return found


async def probe(address: str, state: str, file: Path, *_: int) -> dict[str, dict[str, float]]:
    """By watch and by poll: when each epoch's probe was seen first."""
    seen: dict[str, dict[str, float]] = {"watch": {}, "poll": {}}

    async def watched(client: AsyncClient) -> None:
        async with client.watch(APPLICATION, state, PROBE) as changes:
            async for change in changes:
                assert change.value is not None
                seen["watch"].setdefault(str(change.value.readings), time.time())

    async def polled(client: AsyncClient) -> None:
        while True:
            answer = await client.get(APPLICATION, state, PROBE)
            seen["poll"].setdefault(str(answer.value.readings), time.time())
            await asyncio.sleep(POLL_SECONDS)

    async with AsyncClient(address) as one, AsyncClient(address) as other:
        tasks = [asyncio.create_task(watched(one)), asyncio.create_task(polled(other))]
        while not all(seen.values()):  # noqa: ASYNC110 - a benchmark, which waits for what others do
            await asyncio.sleep(LOOK_SECONDS)
        for times in seen.values():
            times.clear()  # the first one was there before
        await until_the_end(file, tasks)
    # Of the epochs that both have seen whole.
    common = seen["watch"].keys() & seen["poll"].keys()
    return {name: {at: of[at] for at in common} for name, of in seen.items()}


async def watchers(address: str, state: str, file: Path, of_one: int, of_all: int, of_ten: int) -> None:
    """So many watches, whose rows are there; with those of ten keys a scan goes on.

    They only read what comes, so that the server is measured, and not what Python makes of a hundred copies.
    """
    sets = [(f"sensor-{number % KEYS}",) for number in range(of_one)]
    sets += [tuple(f"sensor-{(10 * number + at) % KEYS}" for at in range(10)) for number in range(of_ten)]
    sets += [()] * of_all
    columns = descriptor(state, KEY_GROUPS).key
    ready = 0

    async def follow(channel: grpc.aio.Channel, keys: tuple[str, ...]) -> None:
        nonlocal ready
        watch = channel.unary_stream(_METHOD, pb.WatchRequest.SerializeToString)
        named = pb.StateRef(application=APPLICATION, state=state)
        call: Any = watch(pb.WatchRequest(state=named, keys=[key_to_proto(columns, (key,)) for key in keys]))
        async for message in call:
            if pb.WatchResponse.FromString(message).snapshot_done:
                break
        ready += 1
        async for _ in call:
            pass

    async def scanned(client: AsyncClient) -> None:
        while True:
            async for _ in client.scan_all(APPLICATION, state):
                pass

    async with AsyncExitStack() as stack:
        tasks = []
        for some in chunks(sets):
            channel = await stack.enter_async_context(aio_channel(address))
            tasks += [asyncio.create_task(follow(channel, keys)) for keys in some]
        if of_ten:
            client = await stack.enter_async_context(AsyncClient(address, timeout=PATIENCE_SECONDS))
            tasks.append(asyncio.create_task(scanned(client)))
        while ready < len(sets):
            await asyncio.sleep(LOOK_SECONDS)
            raise_first(tasks)
        await until_the_end(file, tasks)


def chunks(sets: Sequence[tuple[str, ...]]) -> Iterator[Sequence[tuple[str, ...]]]:
    """In runs of as many watches as one connection has."""
    return (sets[at : at + WATCHES_PER_CONNECTION] for at in range(0, len(sets), WATCHES_PER_CONNECTION))


async def lookups(address: str, state: str, file: Path, *_: int) -> dict[str, float]:
    """Looks up keys one after the other: how many a second."""
    asked = 0

    async def ask(client: AsyncClient) -> None:
        nonlocal asked
        while True:
            await client.get(APPLICATION, state, f"sensor-{random.randrange(KEYS)}")
            asked += 1

    async with AsyncClient(address) as client:
        await client.get(APPLICATION, state, PROBE)
        began = time.monotonic()
        await until_the_end(file, [asyncio.create_task(ask(client))])
        return {"per_second": asked / (time.monotonic() - began)}


async def until_the_end(file: Path, tasks: Sequence[asyncio.Task[None]]) -> None:
    """They have begun; returns once they are to end."""
    await asyncio.to_thread(begun(file).touch)
    while not await asyncio.to_thread(ending(file).exists):
        await asyncio.sleep(LOOK_SECONDS)
        raise_first(tasks)
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)


def raise_first(tasks: Sequence[asyncio.Task[None]]) -> None:
    """What one of them has failed with."""
    for task in tasks:
        if task.done():
            task.result()


READERS = {"probe": probe, "watchers": watchers, "lookups": lookups}

if __name__ == "__main__":
    main()
