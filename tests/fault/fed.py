"""`python -m tests.fault.fed --seed S --minutes M`: episodes of the real-time lane, each with the next seed.

Exit code 0: nothing was violated. What an episode with a violation left (history, logs) is kept in --keep.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from keyhole.errors import KeyholeError
from keyhole.local.jars import JarSet, default_cache_dir, fetch
from keyhole.local.java import find_java
from tests.fault.cluster import Machine, Plan
from tests.fault.fed_episode import run_fed_episode, save
from tests.fault.fed_rules import check_fed
from tests.fault.history import Injected
from tests.fault.workload import SUMS

_SHOWN = 400


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="tests.fault.fed", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first episode; the others follow")
    parser.add_argument("--minutes", type=float, default=5.0, help="no episode begins after this time")
    parser.add_argument("--episode-seconds", type=float, default=60.0, help="of faults in each episode")
    parser.add_argument("--keep", type=Path, default=Path("fault-runs"), help="what violated episodes left")
    arguments = parser.parse_args()
    machine = Machine(fetch(JarSet.KAFKA, default_cache_dir(os.environ)), find_java(os.environ))
    until, seed, right = time.monotonic() + 60 * arguments.minutes, arguments.seed, True
    while time.monotonic() < until:
        directory = Path(tempfile.mkdtemp(prefix=f"keyhole-fed-{seed}-"))
        plan = Plan(
            seed,
            arguments.episode_seconds,
            (SUMS,),
            replicas=seed % 2,
            loses_answers=seed % 4 < 2,
        )
        if not _episode(plan, directory, machine):
            right = False
            shutil.copytree(directory, arguments.keep / f"fed-{seed}", dirs_exist_ok=True)
        shutil.rmtree(directory, ignore_errors=True)
        seed += 1
    return 0 if right else 1


def _episode(plan: Plan, directory: Path, machine: Machine) -> bool:
    """Whether nothing was violated. Says what was."""
    try:
        history = run_fed_episode(plan, None, directory, machine)
    except (KeyholeError, AssertionError) as error:
        print(f"seed {plan.seed} came to no verdict: {error}", flush=True)
        return False
    save(history, directory / "history")
    verdict = check_fed(history)
    faults = Counter(event.kind for event in history.seen.events if isinstance(event, Injected))
    rows = sum(map(len, history.source.values()))
    print(f"seed {plan.seed}: {rows} rows, {dict(faults)}, {verdict.answers} answers checked", flush=True)
    for violation in verdict.violations:
        print(f"  {violation.rule}: {violation.text[:_SHOWN]}", flush=True)
    return verdict.right


if __name__ == "__main__":
    sys.exit(main())
