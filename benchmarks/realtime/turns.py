"""One turn of one side: a source sends for some seconds, a reader looks, and what both wrote down becomes a line."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.flink.running import measurements
from benchmarks.processes import Processes
from benchmarks.realtime.events import PROBES_PER_SECOND, probes_of
from benchmarks.realtime.figures import Age, ages, percentiles
from benchmarks.realtime.sides import Side
from keyhole.errors import MachineError
from keyhole.local.processes import Child

_START_SECONDS = 180
# After the last event: what is seen later counts as not seen.
_PATIENCE_SECONDS = 60


class Turn(NamedTuple):
    """What became of the probes that count.

    Attributes:
        ages: In their order.
        line: For people: percentiles, and under which load.
    """

    ages: list[Age]
    line: dict[str, Any]


def turn(
    side: Side, rate: int, warm: float, seconds: float, bootstrap_servers: str, pids: Mapping[str, int], directory: Path
) -> Turn:
    """Measures.

    Args:
        warm: Seconds at the beginning whose probes don't count.
        pids: Of all processes whose processor time is to be told by name.

    Raises:
        MachineError: The source or the reader failed, or no answer shows any probe that counts.
    """
    probes = probes_of(rate, warm + seconds)
    first, side.next = side.next, side.next + probes
    limit = round(warm + seconds) + _PATIENCE_SECONDS
    with contextlib.ExitStack() as stack:
        stack.enter_context(side.in_turn())
        reader = side.reader(first + probes - 1, _START_SECONDS + limit)
        stack.callback(reader.kill)
        reader.wait_healthy(lambda: "begun" in reader.output().splitlines(), _START_SECONDS)
        source = _source(bootstrap_servers, side.topic, rate, warm + seconds, first, directory)
        stack.callback(source.kill)
        processes = Processes({**pids, "source": source.pid, "reader": reader.pid})
        before, began = processes.usage(), time.monotonic()
        sent = _result(source, limit)
        used, took = processes.usage().since(before), time.monotonic() - began
        load = os.getloadavg()[0]
        # It ends by itself, at the latest when its time is over.
        seen = _result(reader, _START_SECONDS + limit)["seen"]
    counted = round(warm * min(rate, PROBES_PER_SECOND))
    found, unseen = ages(first + counted, sent["sent_ns"][counted:], [(number, at) for number, at in seen])
    if not found:
        raise MachineError(f"no answer of {side.name} showed any of {unseen} events within {_PATIENCE_SECONDS} s")
    line = {
        "side": side.name,
        "rate": rate,
        "events_per_second": sent["events_per_second"],
        "samples": len(found),
        "unseen": unseen,
        **percentiles(found),
        "load": round(load, 1),
        # Seconds of it per second, by process; all that has no name is Spark's, its Python driver included.
        "cpu": {name: round(spent / took, 2) for name, spent in used.items() if spent >= 0.01},
    }
    return Turn(found, line)


def _source(bootstrap_servers: str, topic: str, rate: int, seconds: float, first: int, directory: Path) -> Child:
    command = [sys.executable, "-m", "benchmarks.realtime.events", bootstrap_servers, topic]
    command += ["--rate", str(rate), "--seconds", str(seconds), "--first", str(first)]
    return Child("the source", command, directory / "source.log", os.environ)


def _result(child: Child, seconds: float) -> dict[str, Any]:
    code = child.wait(seconds)
    if code != 0:
        what = f"did not end within {seconds:.0f} s" if code is None else f"ended with exit code {code}"
        raise MachineError(f"{child.name} {what}: {child.output()[-2000:]}")
    return measurements(child.output())[-1]
