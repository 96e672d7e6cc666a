"""What the control plane takes as servers, key groups, states and proxies grow: processor time, messages and bytes.

    uv run python -m benchmarks.control_plane [--doublings 3] [--full] > FILE.jsonl
    uv run python -m benchmarks.control_plane_curve docs/control-plane.svg FILE.jsonl

The code is the real one (benchmarks/simulated_plane.py); the network, Kafka and the stores are in memory. Each axis is
doubled by itself, and servers with their key groups, as a cluster grows. There is a line of JSON for each size, and at
the end the exponent of each step on each axis: 1 is linear, 2 is square. `--full` adds two clusters of 65,536 key
groups, with 1,000 servers and with 200 states. They take minutes, and leave out the restart.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.simulated_plane import Plane, PlaneSize, Step, set_apart
from benchmarks.simulated_proxy import routed
from keyhole.metrics import exposition
from keyhole.metrics.metric import Component
from keyhole.testing.stats import figures_of_a_server
from services.metrics_exporter.kafka_look import Found
from services.metrics_exporter.scrape import ScrapedAnswer, Views

BASE = PlaneSize(servers=16, key_groups=1024, states=4)
PROXIES = 4
# 1,000 servers with 200 states each take more memory than a machine may have: each server has a store for each state.
FULL = (PlaneSize(servers=1000, key_groups=65_536, states=8), PlaneSize(servers=40, key_groups=65_536, states=200))
FULL_PROXIES = 50
# As a cluster grows: each server has as many key groups as before.
TOGETHER = "servers with key groups"
AXES = ("servers", "key_groups", "states", TOGETHER)
FIGURES = ("cpu_seconds", "servers_cpu_seconds", "messages", "bytes", "control_bytes")


def main() -> None:
    """Measures each axis; prints a line of JSON for each size, and one with the exponents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--doublings", type=int, default=3, help="of each axis")
    parser.add_argument("--axes", nargs="*", default=AXES, choices=AXES)
    parser.add_argument("--full", action="store_true", help="also the largest size, without the restart")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # servers that are lost here are meant to be
    lines = []
    for axis, (size, proxies) in sizes(options.axes, options.doublings):
        lines.append({"axis": axis, **dataclasses.asdict(size), "proxies": proxies, "steps": measured(size, proxies)})
        print(json.dumps({"benchmark": "control_plane"} | lines[-1]), flush=True)
    print(json.dumps({"benchmark": "control_plane", "exponents": exponents(lines)}), flush=True)
    for size in FULL if options.full else ():
        steps = measured(size, FULL_PROXIES, restart=False)
        line = {"axis": "full", **dataclasses.asdict(size), "proxies": FULL_PROXIES, "steps": steps}
        print(json.dumps({"benchmark": "control_plane"} | line), flush=True)


def sizes(axes: Iterable[str], doublings: int) -> Iterator[tuple[str, tuple[PlaneSize, int]]]:
    """By axis, from the base on."""
    for axis, factor in itertools.product(axes, (2**of for of in range(doublings + 1))):
        grown = ("servers", "key_groups") if axis == TOGETHER else (axis,)
        size = dataclasses.replace(BASE, **{name: getattr(BASE, name) * factor for name in grown})
        yield axis, (size, PROXIES)


def measured(size: PlaneSize, proxies: int, *, restart: bool = True) -> dict[str, dict[str, float]]:
    """Each step of one cluster, from its start on."""
    plane = Plane(size)
    found: dict[str, dict[str, float]] = {}
    first, second = size.server_names()[:2]
    try:
        with plane.measured() as step:
            plane.run_epoch(0, {})
        found["first assignment"] = figures(step)
        plane.settle()
        with plane.measured() as step:
            plane.beat()
        found["heartbeat"] = figures(step)
        with plane.measured() as step:
            plane.run_epoch(1, {})
        found["epoch"] = figures(step)
        ownership = plane.ownership()
        with plane.measured() as step:
            plane.lose(first)
        found["a server's loss"] = figures(step)
        if restart:
            plane.servers[first].start()
            plane.settle()
            with plane.measured() as step:
                plane.restart(second)
            found["a server's restart"] = figures(step)
    finally:
        plane.close()
    set_apart()
    seconds = asyncio.run(routed(ownership))
    heard = sum(map(len, ownership))
    found["a proxy's start"] = {"cpu_seconds": seconds, "messages": len(ownership), "bytes": heard}
    found["all proxies told"] = {"messages": proxies * len(ownership), "bytes": proxies * heard}
    found["scrape"] = scraped(size)
    return found


def figures(step: Step) -> dict[str, float]:
    """Of one step, by the names that they have in JSON."""
    return {
        "cpu_seconds": step.driver_seconds,
        "servers_cpu_seconds": step.servers_seconds,
        "messages": sum(step.messages.values()),
        "bytes": step.sent_bytes,
        "control_bytes": step.control_bytes,
    }


def scraped(size: PlaneSize) -> dict[str, float]:
    """What the exporter makes of the answers of all servers. Each holds as many states as it could own a part of."""
    held = min(size.states, max(1, size.key_groups // size.servers))
    share = size.key_groups // size.states
    spread = max(1, size.servers * held // size.states)
    answers = []
    for number, name in enumerate(size.server_names()):
        groups = range(number % spread, share, spread)
        stats = figures_of_a_server(name, held, groups, share)
        answers.append(ScrapedAnswer(Component.STATE_SERVER, True, stats))
    views = Views()
    set_apart()
    began = time.process_time()
    view = views.make(answers, Found(), 1, 1.0)
    page = exposition.text(view.families)
    return {"cpu_seconds": time.process_time() - began, "messages": size.servers, "bytes": len(page)}


def exponents(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """By axis, step and figure: the slope of its logarithm over that of the axis, by least squares."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for axis in dict.fromkeys(line["axis"] for line in lines):
        of_axis = [line for line in lines if line["axis"] == axis]
        across = [math.log(line["servers" if axis == TOGETHER else axis]) for line in of_axis]
        for step, figure in itertools.product(of_axis[0]["steps"], FIGURES):
            values = [line["steps"][step].get(figure, 0.0) for line in of_axis]
            if len(values) > 1 and all(value > 0 for value in values):
                slope = _slope(across, [math.log(value) for value in values])
                found.setdefault(axis, {}).setdefault(step, {})[figure] = round(slope, 2)
    return found


def _slope(across: Sequence[float], up: Sequence[float]) -> float:
    mean_across, mean_up = sum(across) / len(across), sum(up) / len(up)
    covariance = sum((x - mean_across) * (y - mean_up) for x, y in zip(across, up, strict=True))
    return covariance / sum((x - mean_across) ** 2 for x in across)


if __name__ == "__main__":
    main()
