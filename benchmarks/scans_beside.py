"""Lookups while scans look through a whole state: how much later their answers come than with nothing beside them.

    uv run python -m benchmarks.scans_beside [--scans 32] [--seconds 5] [--repeats 3]

One line of JSON per round, both in turn, and the medians of the ratios. The scans select nothing, so a state server
looks at each entry and sends none. They are asked for by a process of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.cluster import cluster
from benchmarks.loading import APPLICATION
from benchmarks.scans import STATE, load, loop, sensor
from keyhole import AsyncClient, field
from keyhole.rpc.server import run

_ENTRIES, _KEYS, _OUTSTANDING = 24, 2000, 16


def main() -> None:
    """Prints one line of JSON per round, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scans", type=int, default=32, help="under way at a time")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scan", metavar="PROXY", help="scan, until the end of the process: what this starts itself")
    options = parser.parse_args()
    if options.scan:
        run(scan(options.scan, options.scans))
        return
    with cluster() as running:
        load(running)
        run(measure(running.proxy, options))


async def measure(proxy: str, options: argparse.Namespace) -> None:
    """Without scans and with them, in turn."""
    ratios: dict[str, list[float]] = {"p50_us": [], "p99_us": []}
    async with AsyncClient(proxy, timeout=30) as client:

        async def got(key: str) -> int:
            return int((await client.get(APPLICATION, STATE, (key, 7))).found)

        names = [sensor(_ENTRIES, number) for number in range(_KEYS)]
        for _ in range(options.repeats):
            alone = await loop(got, names, 1, _OUTSTANDING, options.seconds)
            with scanning(proxy, options.scans):
                beside = await loop(got, names, 1, _OUTSTANDING, options.seconds)
            for name, of in ratios.items():
                of.append(beside[name] / alone[name])
            print(json.dumps({"benchmark": "scans_beside", "alone": alone, "beside": beside}), flush=True)
    medians = {f"{name}_ratio": round(statistics.median(of), 2) for name, of in ratios.items()}
    print(json.dumps({"benchmark": "scans_beside", "scans": options.scans, **medians}))


@contextlib.contextmanager
def scanning(proxy: str, scans: int) -> Iterator[None]:
    """A process that scans, from its first answer on."""
    command = [sys.executable, "-m", "benchmarks.scans_beside", "--scan", proxy, "--scans", str(scans)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise SystemExit("the process that scans has ended")
            yield
        finally:
            process.kill()


async def scan(proxy: str, scans: int) -> None:
    """Looks through the state, so many times at once, again and again."""
    async with AsyncClient(proxy, timeout=60) as client:

        async def one() -> None:
            while True:
                async for _ in client.scan_all(APPLICATION, STATE, where=field("temperature") < 0):
                    pass
                print("scanned", flush=True)

        await asyncio.gather(*(one() for _ in range(scans)))


if __name__ == "__main__":
    main()
