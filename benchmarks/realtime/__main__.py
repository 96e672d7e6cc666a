"""Freshness of the real-time lane: from when an event is sent to its topic to the first answer that shows it, beside a
bare consumer, the batch lane and Flink's queryable state. And how many updates a second a state server merges.

    uv run python -m benchmarks.realtime [--seconds 20] [--warm 10] [--repeats 3] [--rates 1000 10000] [--quick]
    uv run python -m benchmarks.realtime --only bare,feed

    bare         a producer, and a consumer that reads and decodes
    feed         keyhole feed, as a user starts it
    spark        queryable.realtime in a local session, away from batch ends
    flink-0      Flink with buffer timeout 0, its job reading its topic by Flink's own connector
    flink-100    the same with 100, Flink's default
    batch        the batch lane: micro-batches as fast as they come
    ends         queryable.realtime across the ends of short batches (--batch)
    merging      updates a second that one server merges from an updates topic, and lookups meanwhile

The first six take turns. Each has a topic of its own, and idles when it is not its turn. Flink needs Maven and a JDK.
One line of JSON per turn on standard output, then one per side and rate; what is going on is on standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.cluster import Cluster, cluster
from benchmarks.realtime.batch_ends import NAME as ENDS
from benchmarks.realtime.batch_ends import across_batch_ends
from benchmarks.realtime.figures import summaries
from benchmarks.realtime.merging import Merging
from benchmarks.realtime.sides import SIDES, Sides
from benchmarks.realtime.turns import turn
from keyhole.errors import KeyholeError, MachineError

MERGING = "merging"
PARTS = (*SIDES, ENDS, MERGING)
_BEGAN = time.monotonic()
# Of --quick: to see that all of it works, not for figures.
_QUICK = {"seconds": 4.0, "warm": 2.0, "repeats": 1, "ends_seconds": 16.0, "batch": "5 seconds", "updates": 200_000}


def main() -> int:
    """Prints the figures. Returns 1 where something is missing on this machine, or failed."""
    options = arguments(sys.argv[1:])
    try:
        with cluster() as running:
            measure(running, options)
    except KeyholeError as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """As they were given; `only` is a list of PARTS."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=_parts, default=list(PARTS), metavar="PART,PART")
    parser.add_argument("--rates", type=int, nargs="+", default=[1_000, 10_000], help="events a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a turn")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds before, of which nothing counts")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pause-ms", type=float, default=1.0, help="of readers, between an answer and the next lookup")
    parser.add_argument("--key-groups", type=int, default=64, help="of the states")
    parser.add_argument("--batch", default="10 seconds", help="of the part ends")
    parser.add_argument("--ends-seconds", type=float, default=60.0, help="of the part ends")
    parser.add_argument("--updates", type=int, default=1_000_000, help="of the part merging")
    parser.add_argument("--keys", type=int, default=10_000, help="of the part merging")
    parser.add_argument("--quick", action="store_true", help="seconds, not minutes: to see that it works")
    options = parser.parse_args(words)
    if options.quick:
        parser.set_defaults(**_QUICK)
        options = parser.parse_args(words)
    return options


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        raise argparse.ArgumentTypeError(f"there is no part {unknown[0]}; there are {', '.join(PARTS)}")
    return parts


def measure(running: Cluster, options: argparse.Namespace) -> None:
    """All parts that were chosen."""
    tell(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    lines: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        sides = Sides(running, stack, options.key_groups, options.pause_ms)
        with contextlib.ExitStack() as started:
            in_turn = Sides(running, started, options.key_groups, options.pause_ms)
            lines = in_turns(running, in_turn, [part for part in options.only if part in SIDES], options)
        if ENDS in options.only:
            tell(f"{ENDS}: batches of {options.batch}")
            of = {"rate": options.rates[0], "batch": options.batch, "warm": options.warm}
            printed(across_batch_ends(running, sides, seconds=options.ends_seconds, **of))
    if MERGING in options.only:
        merging = Merging(running, options.updates, options.keys, options.seconds, tell)
        for line in merging.measure(options.repeats):
            printed(line)
    for line in summaries(lines):
        printed(line)


def in_turns(running: Cluster, sides: Sides, names: Sequence[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every side at every rate, and that several times, so that a noisy minute hits all alike."""
    of = []
    for name in names:
        tell(f"starting {name}")
        of.append(sides.make(name))
    pids = {**running.pids, **{key: pid for side in of for key, pid in side.pids.items()}}
    lines = []
    for number in range(1, options.repeats + 1):
        for rate in options.rates:
            for side in of:
                tell(f"{side.name}, {rate:,} events/s, turn {number} of {options.repeats}")
                about = running.bootstrap_servers, pids, running.directory
                try:
                    lines.append(turn(side, rate, options.warm, options.seconds, *about).line)
                except MachineError as error:  # the others' figures are worth having
                    printed({"side": side.name, "rate": rate, "failed": error.message, "load": os.getloadavg()[0]})
                    continue
                printed(lines[-1])
    return lines


def printed(line: dict[str, Any]) -> None:
    """Prints one line of JSON on standard output, at once."""
    print(json.dumps(line), flush=True)


def tell(what: str) -> None:
    """On standard error, with the time since the start."""
    print(f"{time.monotonic() - _BEGAN:6.0f} s: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
