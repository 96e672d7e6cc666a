"""queryable.realtime with short batches: nothing is read from a batch's end until the next one has begun."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from benchmarks.cluster import Cluster
from benchmarks.realtime.events import prepare
from benchmarks.realtime.figures import longest_by_batch, spread
from benchmarks.realtime.sides import Side, Sides
from benchmarks.realtime.turns import turn
from keyhole.spark import queryable

NAME = "ends"


def across_batch_ends(
    running: Cluster, sides: Sides, *, rate: int, batch: str, warm: float, seconds: float
) -> dict[str, Any]:
    """Ages of all events, and the longest of each batch that began while they were sent.

    Args:
        batch: As Spark writes an interval; it takes 5 seconds or more.
    """
    prepare(running.bootstrap_servers, f"readings-{NAME}")
    with sides.query(NAME, batch) as query:
        side = Side(NAME, f"readings-{NAME}", sides.answers(NAME))
        done = turn(side, rate, warm, seconds, running.bootstrap_servers, running.pids, running.directory)
        starts = _starts_ns(query)
    line = {**done.line, "batch": batch}
    if longest := longest_by_batch(done.ages, starts):
        line |= {"batches": len(longest), "longest_ms_by_batch": spread(longest, 1)}
    return line | {"load": round(os.getloadavg()[0], 1)}


def _starts_ns(query: queryable.RealTimeQuery) -> Sequence[int]:
    """When batches that have ended began, and the one that goes on, by the monotonic clock."""
    ahead_ns = time.time_ns() - time.monotonic_ns()
    progress = [json.loads(of.json) for of in query.query.recentProgress]
    starts = [datetime.fromisoformat(of["timestamp"]).timestamp() for of in progress]
    if progress:
        starts.append(starts[-1] + progress[-1]["durationMs"]["triggerExecution"] / 1000)
    return sorted(round(start * 1e9) - ahead_ns for start in starts)
