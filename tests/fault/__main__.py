"""`python -m tests.fault --seed S --minutes M [--json FILE]`: episode after episode, each with the next seed.

Exit code 0: nothing was violated. What an episode with a violation left (history, logs) is kept in --keep.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from keyhole.errors import KeyholeError
from keyhole.local.jars import JarSet, default_cache_dir, fetch
from keyhole.local.java import find_java
from tests.fault.cluster import Machine, Plan
from tests.fault.episode import run_episode
from tests.fault.summary import Summary
from tests.fault.workload import BY_CLOCK, DRAWN, OF_SPARK, SPARK_STATES


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="tests.fault", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first episode; the others follow")
    parser.add_argument("--minutes", type=float, default=5.0, help="no episode begins after this time")
    parser.add_argument("--episode-seconds", type=float, default=150.0, help="of faults in each episode")
    parser.add_argument("--json", type=Path, help="where the summary goes, after every episode")
    parser.add_argument("--keep", type=Path, default=Path("fault-runs"), help="what violated episodes left")
    parser.add_argument("--keep-all", action="store_true", help="keep every episode's files")
    parser.add_argument(
        "--states",
        nargs="+",
        choices=[*DRAWN, *BY_CLOCK, *OF_SPARK],
        help="default: all that the driver can feed, those that expire by the clock in two of four episodes; with "
        "Spark half of them, in turn",
    )
    parser.add_argument(
        "--spark-every",
        type=int,
        default=4,
        help="every so many episodes the driver has Spark, and in each second one of these executors; 0: none",
    )
    parser.add_argument("--plant", default="", help="a bug to plant into the state servers (tests/fault/planted.py)")
    arguments = parser.parse_args()
    machine = Machine(fetch(JarSet.KAFKA, default_cache_dir(os.environ)), find_java(os.environ))
    summary = Summary()
    until = time.monotonic() + 60 * arguments.minutes
    seed = arguments.seed
    while time.monotonic() < until:
        plan = _plan(seed, arguments)
        directory = Path(tempfile.mkdtemp(prefix=f"keyhole-fault-{seed}-"))
        try:
            history = run_episode(plan, None, directory, machine)
            right = summary.add(history, plan.seconds)
            history.save(directory / "history")
            print(summary.last(), flush=True)
        except (KeyholeError, AssertionError) as error:
            # The machine's failure, or ours: the hours go on, and the summary tells.
            print(f"seed {seed} came to no verdict: {error}", flush=True)
            summary.without_verdict[seed] = str(error)
            right = False
        if not right or arguments.keep_all:
            shutil.copytree(directory, arguments.keep / str(seed), dirs_exist_ok=True)
        shutil.rmtree(directory, ignore_errors=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(summary.to_json(), indent=2) + "\n")
        seed += 1
    return 0 if summary.right else 1


def _plan(seed: int, arguments: argparse.Namespace) -> Plan:
    spark = arguments.spark_every > 0 and seed % arguments.spark_every == 0
    if spark:
        states: tuple[str, ...] = SPARK_STATES[seed // (2 * arguments.spark_every) % len(SPARK_STATES)]
    else:
        states = (*DRAWN, *(BY_CLOCK if seed // 2 % 2 else ()))
    return Plan(
        seed,
        arguments.episode_seconds,
        tuple(arguments.states or states),
        spark=spark,
        executors=2 if spark and seed % (2 * arguments.spark_every) == 0 else 0,
        # Where there is no replica, standbys alone must do.
        replicas=seed % 2,
        hedge_quantile=0.9 if seed % 2 else 0.0,
        loses_answers=seed % 5 < 2,
        staged_bytes=2000 if seed % 3 == 0 else 0,
        plant=arguments.plant,
    )


if __name__ == "__main__":
    sys.exit(main())
