"""What a scrape of the metrics exporter takes, over simulated state servers that answer from a process of their own.

uv run python -m benchmarks.exporter [--servers 100] [--states 10] [--scrapes 50]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time

import aiohttp

from keyhole.clock import SystemClock
from keyhole.config import MetricsExporterConfig
from keyhole.rpc.server import run
from keyhole.testing.stats import SimulatedServer
from services.metrics_exporter.app import MetricsExporter, discoveries

# Of a new question to each server: the default, so that scrapes fall into all moments of it.
INTERVAL_SECONDS = 5.0
KEY_GROUPS = 128


def main() -> None:
    """Prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=100)
    parser.add_argument("--states", type=int, default=10)
    parser.add_argument("--scrapes", type=int, default=50)
    parser.add_argument("--simulate", action="store_true", help=argparse.SUPPRESS)  # the servers' process
    options = parser.parse_args()
    if options.simulate:
        run(simulate(options.servers, options.states))
        return
    command = [sys.executable, "-m", "benchmarks.exporter", "--simulate"]
    command += ["--servers", str(options.servers), "--states", str(options.states)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            addresses = tuple(json.loads(process.stdout.readline()))
            print(json.dumps(run(measure(addresses, options.scrapes)) | {"states": options.states}))
        finally:
            process.kill()


async def simulate(servers: int, states: int) -> None:
    """Serves until it is killed."""
    started = []
    for number in range(servers):
        groups = [group for group in range(KEY_GROUPS) if group % servers == number]
        server = SimulatedServer(f"server-{number}", states, groups, KEY_GROUPS)
        await server.start()
        started.append(server)
    print(json.dumps([server.address for server in started]), flush=True)
    await asyncio.Event().wait()


async def measure(addresses: tuple[str, ...], scrapes: int) -> dict[str, object]:
    """Scrapes over HTTP, at moments spread over the interval, once all servers have answered."""
    config = MetricsExporterConfig(servers=addresses, port=0, interval_seconds=INTERVAL_SECONDS)
    exporter = MetricsExporter(config, discoveries(config), None, SystemClock())
    await exporter.start()
    seconds, body = [], b""
    try:
        async with aiohttp.ClientSession() as session:
            url = f"http://{exporter.address}/metrics"
            while body.count(b"keyhole_state_server_ready{") < len(addresses):
                await asyncio.sleep(0.2)
                async with session.get(url) as answer:
                    body = await answer.read()
            for _ in range(scrapes):
                await asyncio.sleep(2 * INTERVAL_SECONDS / scrapes)
                began = time.perf_counter()
                async with session.get(url) as answer:
                    body = await answer.read()
                seconds.append(time.perf_counter() - began)
    finally:
        await exporter.stop()
    seconds.sort()
    return {
        "benchmark": "exporter",
        "servers": len(addresses),
        "samples": sum(not line.startswith(b"#") for line in body.splitlines()),
        "bytes": len(body),
        "scrape_ms": {
            "median": round(statistics.median(seconds) * 1000, 1),
            "p95": round(seconds[int(len(seconds) * 0.95)] * 1000, 1),
            "max": round(seconds[-1] * 1000, 1),
        },
    }


if __name__ == "__main__":
    main()
