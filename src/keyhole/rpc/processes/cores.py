"""How many processes can run at the same time. Pure, but for a look at the machine."""

from __future__ import annotations

import math
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def process_count(processes: int) -> int:
    """Of the setting: itself, or as many as there are cores where it is 0."""
    return processes or cores(_affinity(), _QUOTA.read_text() if _QUOTA.exists() else "")


def cores(usable: int, quota: str) -> int:
    """How many processes can run at the same time.

    Args:
        usable: Cores that this process may run on.
        quota: As a cgroup's cpu.max: "150000 100000" is one and a half cores, of which the second one counts. "max ..."
            and "" are none.
    """
    most, _, period = quota.partition(" ")
    if not most.strip().isdecimal() or not period.strip().isdecimal():
        return usable
    return max(1, min(usable, math.ceil(int(most) / int(period))))


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
