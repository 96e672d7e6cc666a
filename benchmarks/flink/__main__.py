"""Flink's queryable state by itself: lookups per second and latency, or freshness. Needs Maven and a JDK 17 or later.

    uv run python -m benchmarks.flink [--keys 100000] [--seconds 5] [--repeats 3] [--backend rocksdb] [--threads 1]
    uv run python -m benchmarks.flink --freshness [--buffer-timeout-ms 100] [--repeats 3]

Beside Keyhole, in one run: `uv run python -m benchmarks.lookups --flink`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

from benchmarks.flink.running import BACKENDS, Settings, flink
from benchmarks.lookups import OUTSTANDING, printed, summarise
from keyhole.errors import MachineError


def main() -> int:
    """Prints one line of JSON per measurement, and a summary. Returns 1 where something is missing on this machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each number of outstanding lookups")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--backend", choices=BACKENDS, default=Settings.backend)
    parser.add_argument("--threads", type=int, default=Settings.threads, help="of each of Flink's four pools")
    parser.add_argument("--freshness", action="store_true", help="from an event to the first answer that shows it")
    parser.add_argument("--buffer-timeout-ms", type=int, default=Settings.buffer_timeout_ms, help="Flink's setting")
    options = parser.parse_args()
    settings = Settings(backend=options.backend, threads=options.threads, buffer_timeout_ms=options.buffer_timeout_ms)
    try:
        if options.freshness:
            measure_freshness(options.keys, options.repeats, settings)
        else:
            measure_lookups(options.keys, options.seconds, options.repeats, settings)
    except MachineError as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


def measure_lookups(keys: int, seconds: float, repeats: int, settings: Settings) -> None:
    """Prints a line per repeat and level, and the summary."""
    results: list[dict[str, Any]] = []
    with flink(keys, settings) as running:
        for _ in range(repeats):
            results += printed(running.lookups(OUTSTANDING, seconds))
    summarise(results)


def measure_freshness(keys: int, repeats: int, settings: Settings) -> None:
    """Prints a line per repeat, and minimum, median and maximum of their percentiles."""
    results: list[dict[str, Any]] = []
    with flink(keys, settings) as running:
        for _ in range(repeats):
            results.append(running.freshness())
            print(json.dumps(results[-1]), flush=True)
    summary: dict[str, Any] = {"benchmark": "freshness", "system": results[0]["system"], "keys": keys}
    summary["buffer_timeout_ms"] = settings.buffer_timeout_ms
    for name in ("p50_ms", "p99_ms", "max_ms"):
        measured = [result[name] for result in results]
        summary[name] = {"min": min(measured), "median": round(statistics.median(measured), 2), "max": max(measured)}
    print(json.dumps(summary))


if __name__ == "__main__":
    sys.exit(main())
