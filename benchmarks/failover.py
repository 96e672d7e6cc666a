"""How long readers wait when the owner of their keys goes away, with and without a standby.

1,000 reads a second through a proxy, three servers, an epoch three times a second; one server is killed (SIGKILL),
drained (SIGTERM) or suspended (SIGSTOP).

    uv run python -m benchmarks.failover [--runs 20] [--how kill drain stop] [--standbys 0 1]

The gap of a run is the longest that a read, sent from just before the switch until it was over, waited for its
answer. A read that got none within 20 s counts as failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster, cluster
from benchmarks.loading import APPLICATION, Loader, descriptor, rows
from keyhole import AsyncClient, Client
from keyhole.errors import KeyholeError
from keyhole.rpc.server import run
from keyhole.types import Role

SERVERS, KEY_GROUPS, KEYS = 3, 24, 5_000
EPOCH_SECONDS = 0.3
READ_SECONDS, READS_PER_SECOND = 6.0, 1000
TIMEOUT_SECONDS = 20.0
BEFORE_SECONDS = 2.0
STEADY_SECONDS = 90.0


def main() -> None:
    """Prints one line of JSON per run, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--how", nargs="+", choices=tuple(SIGNALS), default=["kill", "drain"])
    parser.add_argument("--standbys", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--reader", nargs=3, metavar=("PROXY", "STATE", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reader:
        proxy, state, file = options.reader
        Path(file).write_text(json.dumps(run(read(proxy, state))))
        return
    results = []
    for standbys in options.standbys:
        with cluster(SERVERS) as running, feeding(running, standbys) as state:
            for number in range(options.runs):
                for how in options.how:
                    victim = number % SERVERS
                    result = {"standbys": standbys, "how": how, **measure(running, state, how, victim, standbys)}
                    print(json.dumps(result), flush=True)
                    results.append(result)
    summarise(results)


SIGNALS = {"kill": signal.SIGKILL, "drain": signal.SIGTERM, "stop": signal.SIGSTOP}


@contextmanager
def feeding(running: Cluster, standbys: int) -> Iterator[str]:
    """A state that gets an epoch all the time, by the real coordinator."""
    of = descriptor(f"failover-{standbys}", KEY_GROUPS)
    sensors = [f"sensor-{number}" for number in range(KEYS)]
    ended = threading.Event()
    failure: list[BaseException] = []

    def feed() -> None:
        try:
            with Loader(running.bootstrap_servers, running.servers, of, standbys) as loader:
                loader.epoch(rows(of, sensors, 0))
                epoch = 0
                while not ended.wait(EPOCH_SECONDS):
                    epoch += 1
                    loader.epoch(rows(of, random.sample(sensors, 200), epoch))
        except BaseException as error:
            failure.append(error)
            raise

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield of.state
    finally:
        ended.set()
        thread.join()
    if failure:
        raise failure[0]


def measure(running: Cluster, state: str, how: str, victim: int, standbys: int) -> dict[str, Any]:
    """One server goes while a reader reads. Returns when all is as before."""
    wait_until(lambda: steady(running, state, standbys), "steady state")
    file = running.directory / "reads.json"
    command = [sys.executable, "-m", "benchmarks.failover", "--reader", running.proxy, state, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()  # it has begun
        time.sleep(BEFORE_SECONDS)
        child = running.children[victim]
        gone_at = time.monotonic()
        os.kill(child.pid, SIGNALS[how])
        if reader.wait():
            raise RuntimeError("the reader failed; see above")
    reads = [tuple(read) for read in json.loads(file.read_text())]
    if how == "stop":
        os.kill(child.pid, signal.SIGCONT)
    else:
        wait_until(lambda: child.exit_code is not None, "the server's end")
        running.start_again(victim)
    during = [read for read in reads if read[0] > gone_at - 0.1]
    before = [read for read in reads if read[0] <= gone_at - 0.1]
    return {
        "gap_ms": round(max(seconds for _, seconds, _, _ in during) * 1000, 1),
        "failed": sum(not ok for _, _, ok, _ in during),
        "reads": len(during),
        "by_standbys": sum(role == Role.STANDBY for _, _, _, role in during),
        "usual_p99_ms": round(statistics.quantiles([seconds for _, seconds, _, _ in before], n=100)[98] * 1000, 1),
    }


def steady(running: Cluster, state: str, standbys: int) -> bool:
    """Every server owns its share, and every key group has its standbys."""
    with Client(running.proxy, timeout=2) as client:
        held = [h for server in client.status() for h in server.holdings if h.descriptor.state == state]
    owned = [len(h.key_groups) for h in held if h.source.role is Role.OWNER and h.ready and h.key_groups]
    followed = sum(len(h.key_groups) for h in held if h.source.role is Role.STANDBY)
    even = len(owned) == SERVERS and sum(owned) == KEY_GROUPS and max(owned) - min(owned) <= 1
    return even and followed >= standbys * KEY_GROUPS


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + STEADY_SECONDS
    while True:
        try:
            if condition():
                return
        except KeyholeError as error:
            what = f"{what} ({error.message})"
        if time.monotonic() > until:
            raise TimeoutError(f"no {what} within {STEADY_SECONDS} s")
        time.sleep(0.2)


async def read(proxy: str, state: str) -> list[tuple[float, float, bool, str]]:
    """The reader process: one read a millisecond, each on its own. (sent at, seconds, answered, role) of each."""
    results: list[tuple[float, float, bool, str]] = []
    async with AsyncClient(proxy, timeout=TIMEOUT_SECONDS) as client:

        async def one(key: str) -> None:
            sent = time.monotonic()
            try:
                answer = await client.get(APPLICATION, state, key)
            except KeyholeError as error:
                results.append((sent, time.monotonic() - sent, False, error.reason))
            else:
                results.append((sent, time.monotonic() - sent, True, str(answer.role)))

        await client.get(APPLICATION, state, "sensor-0")
        print("begun", flush=True)
        begun, asked = time.monotonic(), 0
        async with asyncio.TaskGroup() as under_way:
            while (elapsed := time.monotonic() - begun) < READ_SECONDS:
                while asked < elapsed * READS_PER_SECOND:
                    under_way.create_task(one(f"sensor-{random.randrange(KEYS)}"))
                    asked += 1
                await asyncio.sleep(0.001)
    return results


def summarise(results: list[dict[str, Any]]) -> None:
    """p50 and p99 (of so few runs, nearly the longest) per way to go."""
    for standbys, how in sorted({(result["standbys"], result["how"]) for result in results}):
        mine = [r for r in results if (r["standbys"], r["how"]) == (standbys, how)]
        gaps = sorted(result["gap_ms"] for result in mine)
        p99 = gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))]
        print(
            f"{how:5} standbys={standbys}: gap p50 {statistics.median(gaps):.0f} ms, p99 {p99:.0f} ms "
            f"({gaps[0]:.0f} to {gaps[-1]:.0f}), {sum(r['failed'] for r in mine)} of {sum(r['reads'] for r in mine)} "
            f"reads failed, {len(mine)} runs"
        )


if __name__ == "__main__":
    main()
