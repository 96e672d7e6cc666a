"""The entries of one key through a proxy: a scan against `get_many` of the same entries, in turn in one run.

uv run python -m benchmarks.scans [--seconds 3] [--repeats 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from benchmarks.cluster import Cluster, cluster
from benchmarks.loading import APPLICATION, Loader, descriptor
from keyhole import AsyncClient
from keyhole.encoding.columnar import encode
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind
from keyhole.rpc.server import run

STATE = "hourly"
# Entries per key, and how many such keys there are.
SIZES = {24: 2000, 1000: 100}
OUTSTANDING = (1, 16)


def main() -> None:
    """Prints one line of JSON per size and number of outstanding calls."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with cluster() as running:
        load(running)
        run(measure(running.proxy, options.seconds, options.repeats))


def hourly() -> StateDescriptor:
    return msgspec.structs.replace(descriptor(STATE, 64), kind=StateKind.MAP, map_key=(KeyColumn("hour", KeyType.INT),))


def sensor(entries: int, number: int) -> str:
    return f"sensor-{entries}-{number}"


def load(running: Cluster) -> None:
    """All entries in one epoch."""
    names = [sensor(size, number) for size, keys in SIZES.items() for number in range(keys) for _ in range(size)]
    hours = [hour for size, keys in SIZES.items() for _ in range(keys) for hour in range(size)]
    columns = {
        "sensor": pa.array(names),
        "hour": pa.array(hours, pa.int32()),
        "temperature": pa.array(np.arange(len(names)) * 0.1),
        "readings": pa.array(np.ones(len(names), dtype=np.int64)),
    }
    with Loader(running.bootstrap_servers, running.servers, hourly()) as loader:
        loader.epoch(encode(pa.RecordBatch.from_pydict(columns), hourly()))


async def measure(proxy: str, seconds: float, repeats: int) -> None:
    """Both ways in turn, so that a noisy minute hits them alike."""
    async with AsyncClient(proxy, timeout=30) as client:
        for entries, keys in SIZES.items():

            async def scanned(key: str) -> int:
                return len(await client.scan(APPLICATION, STATE, key))

            async def got(key: str, entries: int = entries) -> int:
                answers = await client.get_many(APPLICATION, STATE, [(key, hour) for hour in range(entries)])
                return sum(answer.found for answer in answers)

            names = [sensor(entries, number) for number in range(keys)]
            for outstanding in OUTSTANDING:
                measured: dict[str, list[dict[str, float]]] = {"scan": [], "get_many": []}
                for _ in range(repeats):
                    for way, read in (("scan", scanned), ("get_many", got)):
                        measured[way].append(await loop(read, names, entries, outstanding, seconds))
                figures: dict[str, Any] = {"benchmark": "scans", "entries": entries, "outstanding": outstanding}
                for way, results in measured.items():
                    rates = [result["entries_per_second"] for result in results]
                    p50s = [result["p50_us"] for result in results]
                    figures[way] = {
                        "entries_per_second": {
                            "min": min(rates),
                            "median": statistics.median(rates),
                            "max": max(rates),
                        },
                        "p50_us": statistics.median(p50s),
                    }
                medians = [figures[way]["entries_per_second"]["median"] for way in ("scan", "get_many")]
                print(json.dumps({**figures, "ratio": round(medians[0] / medians[1], 2)}), flush=True)


async def loop(
    read: Callable[[str], Awaitable[int]], names: Sequence[str], entries: int, outstanding: int, seconds: float
) -> dict[str, float]:
    """A closed loop: each answer sends the next read, of a key drawn at random. The first third warms up."""
    latencies: list[float] = []
    recording = stopping = False

    async def reader() -> None:
        while not stopping:
            began = time.perf_counter()
            assert await read(random.choice(names)) == entries
            if recording:
                latencies.append(time.perf_counter() - began)

    tasks = [asyncio.create_task(reader()) for _ in range(outstanding)]
    await asyncio.sleep(seconds / 3)
    recording = True
    began = time.perf_counter()
    await asyncio.sleep(seconds)
    recording, elapsed = False, time.perf_counter() - began
    stopping = True
    await asyncio.gather(*tasks)
    latencies.sort()
    return {
        "entries_per_second": round(len(latencies) * entries / elapsed),
        "p50_us": round(statistics.median(latencies) * 1e6),
        "p99_us": round(latencies[len(latencies) * 99 // 100] * 1e6),
    }


if __name__ == "__main__":
    main()
