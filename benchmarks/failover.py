"""How long readers wait when the owner of their keys goes away, with and without a standby.

1,000 reads a second through a proxy, three servers, an epoch three times a second; one server is killed (SIGKILL),
drained (SIGTERM), suspended (SIGSTOP), or cut off: nothing passes between it and the proxy or the driver any more, and
no connection ends. It is always the same server that is cut off; a relay leads there, in a cluster of its own.

    uv run python -m benchmarks.failover [--runs 20] [--how kill drain stop cut] [--standbys 0 1]

The gap of a run is the longest that a read, sent from just before the switch until it was over, waited for its
answer. A read that got none within 20 s counts as failed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
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
from keyhole.model.read import Role
from keyhole.rpc.server import run

SERVERS, KEY_GROUPS, KEYS = 3, 24, 5_000
EPOCH_SECONDS = 0.3
READ_SECONDS, READS_PER_SECOND = 6.0, 1000
TIMEOUT_SECONDS = 20.0
BEFORE_SECONDS = 2.0
STEADY_SECONDS = 90.0


def main() -> None:
    """Prints one line of JSON per run, and one for all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--how", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--standbys", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--reader", nargs=3, metavar=("PROXY", "STATE", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reader:
        proxy, state, file = options.reader
        Path(file).write_text(json.dumps(run(read(proxy, state))))
        return
    results = []
    # A relay takes its time: whoever doesn't need it is measured without.
    groups = [[how for how in options.how if how != CUT], [how for how in options.how if how == CUT]]
    for standbys, ways in itertools.product(options.standbys, filter(None, groups)):
        relayed = int(CUT in ways)
        with cluster(SERVERS, relayed=relayed) as running, feeding(running, standbys) as state:
            for number, how in itertools.product(range(options.runs), ways):
                victim = number % (relayed or SERVERS)
                result = {"standbys": standbys, "how": how, **measure(running, state, how, victim, standbys)}
                print(json.dumps(result), flush=True)
                results.append(result)
    print(json.dumps({"benchmark": "failover", "runs": options.runs, "cases": cases(results)}))


SIGNALS = {"kill": signal.SIGKILL, "drain": signal.SIGTERM, "stop": signal.SIGSTOP}
CUT = "cut"
WAYS = (*SIGNALS, CUT)


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
        if how == CUT:
            running.links.cut(running.servers[victim])
        else:
            os.kill(child.pid, SIGNALS[how])
        if reader.wait():
            raise RuntimeError("the reader failed; see above")
    reads = [tuple(read) for read in json.loads(file.read_text())]
    if how == CUT:
        running.links.heal(running.servers[victim])
    elif how == "stop":
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


def cases(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per way to go: how long the gaps were (the p99 of so few runs is nearly the longest), and what failed."""
    found = []
    for standbys, how in sorted({(result["standbys"], result["how"]) for result in results}):
        mine = [r for r in results if (r["standbys"], r["how"]) == (standbys, how)]
        found.append(
            {
                "how": how,
                "standbys": standbys,
                "runs": len(mine),
                "gap_ms": summary([r["gap_ms"] for r in mine]),
                "usual_p99_ms": summary([r["usual_p99_ms"] for r in mine]),
                "failed": sum(r["failed"] for r in mine),
                "reads": sum(r["reads"] for r in mine),
                "by_standbys": sum(r["by_standbys"] for r in mine),
            }
        )
    return found


def summary(values: list[float]) -> dict[str, int]:
    """Minimum, median, p99, maximum."""
    ranked = sorted(values)
    p99 = ranked[min(len(ranked) - 1, int(0.99 * len(ranked)))]
    of = {"min": ranked[0], "median": statistics.median(ranked), "p99": p99, "max": ranked[-1]}
    return {name: round(value) for name, value in of.items()}


if __name__ == "__main__":
    main()
