"""Lookups per second, latency and processor time: direct to a state server, through a proxy, and "routed", by a client
that asks the servers itself, told by the proxy where they are. Client, proxy and servers are processes of their own; of
several servers none has all keys, and there is no direct way. With --flink, Flink's queryable state is measured in the
same run, in turn (needs Maven and a JDK); with --ttl, beside the state, the same one with a ttl; with --by-port, the
same state of a second cluster, whose proxy and routed clients go by the servers' lookup ports.

    uv run python -m benchmarks.lookups [--keys 100000] [--servers 1] [--seconds 5] [--repeats 3] [--flink] [--ttl]
        [--by-port]
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
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import psutil

from benchmarks.cluster import Cluster, cluster
from benchmarks.flink.running import Settings, flink
from benchmarks.loading import APPLICATION, Loader, descriptor, rows
from keyhole import AsyncClient
from keyhole.client.options import Routing
from keyhole.errors import MachineError
from keyhole.rpc.server import run

OUTSTANDING = (1, 16, 64, 256, 1024)
WARM_SECONDS = 2.0
LOAD_ROWS = 100_000
PLAIN, WITH_TTL, BY_PORT = "keyhole", "keyhole with a ttl", "keyhole by its lookup port"
STATES = {PLAIN: "lookups", WITH_TTL: "expiring", BY_PORT: "lookups"}
DAY_MS = 86_400_000


class Size(NamedTuple):
    """Of what is looked up in."""

    keys: int
    servers: int


class Target(NamedTuple):
    """What a client is made with, and the processes that work for it beside it."""

    address: str
    routing: Routing
    pids: Sequence[int]


class NotByPort(Exception):
    """What was to be measured over a lookup port went by gRPC."""


def main() -> None:
    """Prints one line of JSON per measurement, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--flink", action="store_true", help="also the same lookups of Flink's queryable state")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--ttl", action="store_true", help="also the same lookups of a state whose entries expire")
    parser.add_argument("--by-port", action="store_true", help="also the same lookups over the servers' lookup ports")
    parser.add_argument("--client", help=argparse.SUPPRESS)  # the client process: the target's address
    parser.add_argument("--routing", default="proxy", help=argparse.SUPPRESS)
    parser.add_argument("--pids", type=int, nargs="*", default=[], help=argparse.SUPPRESS)  # whose time counts
    parser.add_argument("--system", default=PLAIN, help=argparse.SUPPRESS)
    parser.add_argument("--outstanding", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        target = Target(options.client, options.routing, options.pids)
        looking_up = client(target, STATES[options.system], options.keys, options.outstanding, options.seconds)
        result = run(looking_up)
        if options.system != BY_PORT:
            del result["connected_to"]
        print(json.dumps(result))
        return
    systems = (PLAIN, *([WITH_TTL] if options.ttl else []), *([BY_PORT] if options.by_port else []))
    try:
        size = Size(options.keys, options.servers)
        summarise(measure(systems, size, options.seconds, options.repeats, beside_flink=options.flink))
    except MachineError as error:
        sys.exit(error.message)


def measure(
    systems: Sequence[str], size: Size, seconds: float, repeats: int, *, beside_flink: bool
) -> list[dict[str, Any]]:
    """All in turn, and that several times, so that a noisy minute hits all alike. Whose turn it isn't idles."""
    results: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        # First, because Maven may have to build it.
        beside = stack.enter_context(flink(size.keys, Settings())) if beside_flink else None
        grpc = stack.enter_context(cluster(size.servers))
        running = dict.fromkeys(systems, grpc)
        if BY_PORT in systems:
            running[BY_PORT] = stack.enter_context(cluster(size.servers, by_port=True))
        for system in systems:
            load(running[system], system, size.keys)
        for _ in range(repeats):
            results += printed(keyhole_lookups(running, size.keys, seconds))
            if beside is not None:
                results += printed(beside.lookups(OUTSTANDING, seconds))
    return results


def printed(results: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The same, each printed as soon as it is there."""
    for result in results:
        print(json.dumps(result), flush=True)
        yield result


def keyhole_lookups(running: Mapping[str, Cluster], keys: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Each level, by each path, of each system; each by a client process of its own.

    Raises:
        NotByPort: The lookup ports were not used where they were to be.
    """
    for outstanding, path, system in itertools.product(OUTSTANDING, ("direct", "proxy", "routed"), running):
        of = running[system]
        if path == "direct" and (len(of.servers) > 1 or system == BY_PORT):
            continue  # who is told of no port, as no proxy is asked, goes by gRPC
        target = of.servers[0] if path == "direct" else of.proxy
        routing = "direct" if path == "routed" else "proxy"
        pids = [str(pid) for name, pid in of.pids.items() if name != "kafka"]
        command = [sys.executable, "-m", "benchmarks.lookups", "--client", target, "--system", system]
        command += ["--routing", routing, "--keys", str(keys), "--outstanding", str(outstanding)]
        command += ["--seconds", str(seconds), "--pids", *pids]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        result = json.loads(out)
        if system == BY_PORT:
            connected_to = result.pop("connected_to")
            peers = connected_to if path == "routed" else peers_of(of.pids["proxy"])
            if not set(peers) & set(of.lookup_ports):
                raise NotByPort(f"{path} with {outstanding} outstanding; the log of the proxy may say why")
        yield {"system": system, "path": path, **result}


def load(running: Cluster, system: str, keys: int) -> None:
    """Every key once, in epochs."""
    state = descriptor(STATES[system], 64, DAY_MS if system == WITH_TTL else 0)
    with Loader(running.bootstrap_servers, running.servers, state) as loader:
        for start in range(0, keys, LOAD_ROWS):
            sensors = [f"sensor-{number}" for number in range(start, min(keys, start + LOAD_ROWS))]
            loader.epoch(rows(state, sensors, 1))


async def client(target: Target, state: str, keys: int, outstanding: int, seconds: float) -> dict[str, Any]:
    """A closed loop: each answer sends the next lookup, of a key drawn at random."""
    latencies: list[float] = []
    recording = stopping = False
    async with AsyncClient(target.address, timeout=30, routing=target.routing) as lookups:

        async def loop() -> None:
            draw = random.random
            while not stopping:
                number = int(draw() * keys)
                began = time.perf_counter()
                answer = await lookups.get(APPLICATION, state, f"sensor-{number}")
                if recording:
                    latencies.append(time.perf_counter() - began)
                assert answer.found

        tasks = [asyncio.create_task(loop()) for _ in range(outstanding)]
        await asyncio.sleep(WARM_SECONDS)
        recording, before = True, processor_seconds(target.pids)
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        recording, elapsed = False, time.perf_counter() - began
        taken = processor_seconds(target.pids) - before
        connected_to = peers_of(os.getpid())
        stopping = True
        await asyncio.gather(*tasks)
    latencies.sort()
    return {
        "connected_to": connected_to,
        "keys": keys,
        "outstanding": outstanding,
        "lookups_per_second": round(len(latencies) / elapsed),
        "p50_us": round(latencies[len(latencies) // 2] * 1e6),
        "p99_us": round(latencies[int(len(latencies) * 0.99)] * 1e6),
        "processor_us": round(1e6 * taken / len(latencies), 1),
    }


def peers_of(pid: int) -> list[int]:
    """The ports that a process is connected to."""
    return [of.raddr.port for of in psutil.Process(pid).net_connections("tcp") if of.raddr]


def processor_seconds(pids: Sequence[int]) -> float:
    """User and system, of this process and of these; what they do beside lookups counts, too."""
    times = [psutil.Process(pid).cpu_times() for pid in (os.getpid(), *pids)]
    return sum(of.user + of.system for of in times)


def summarise(results: list[dict[str, Any]]) -> None:
    """Per system, path and level: minimum, median, maximum; and ratios of medians to those of Flink, no ttl, gRPC."""
    levels: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for result in results:
        levels.setdefault((result["system"], result["path"], result["outstanding"]), []).append(result)
    medians = {level: statistics.median(r["lookups_per_second"] for r in of) for level, of in levels.items()}
    flink = {outstanding: rate for (system, _, outstanding), rate in medians.items() if system.startswith("flink")}
    for (system, path, outstanding), measured in levels.items():
        rates, median = [r["lookups_per_second"] for r in measured], medians[system, path, outstanding]
        line: dict[str, Any] = {
            "benchmark": "lookups",
            "system": system,
            "path": path,
            "keys": measured[0]["keys"],
            "outstanding": outstanding,
            "lookups_per_second": {"min": min(rates), "median": median, "max": max(rates)},
            "p50_us": statistics.median(r["p50_us"] for r in measured),
            "p99_us": statistics.median(r["p99_us"] for r in measured),
        }
        if "processor_us" in measured[0]:
            line["processor_us"] = statistics.median(r["processor_us"] for r in measured)
        if outstanding in flink and not system.startswith("flink"):
            line["ratio_to_flink"] = round(median / flink[outstanding], 2)
        if system == WITH_TTL:
            line["ratio_to_no_ttl"] = round(median / medians[PLAIN, path, outstanding], 3)
        if system == BY_PORT:
            line["ratio_to_grpc"] = round(median / medians[PLAIN, path, outstanding], 3)
        print(json.dumps(line))


if __name__ == "__main__":
    main()
