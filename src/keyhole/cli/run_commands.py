"""The commands that start programs, or are one: state-server, client-proxy, job, demo and feed."""

from __future__ import annotations

import argparse
import os
import sys
from typing import NamedTuple

from keyhole.cli.wrong_usage import WrongUsage
from keyhole.demo.described_jobs import JobDescription, described
from keyhole.installing import require


class Program(NamedTuple):
    """What a command runs by module name, and which extra brings the modules that it can't do without."""

    module: str
    extra: str
    needs: tuple[str, ...]


SERVICES = {
    "state-server": Program("services.state_server", "server,kafka", ("grpc_health", "lmdb", "confluent_kafka")),
    "client-proxy": Program("services.client_proxy", "server", ("grpc_health", "uvloop")),
}
_TO_FEED = ("grpc", "rich", "confluent_kafka")
_OF_JOBS = ("pyspark", "confluent_kafka")
_FOR_THE_DEMO = ("grpc", "rich", "grpc_health", "pyspark", "confluent_kafka", "lmdb", "jgo", "vega_datasets")


def become(program: Program, options: argparse.Namespace) -> int:
    """Runs it in this process's place.

    Raises:
        InvalidConfiguration: What it needs isn't installed.
    """
    require(program.module, program.extra, program.needs)
    for name in ("role", "applications"):
        if getattr(options, name, None) is not None:
            os.environ[f"KEYHOLE_STATE_SERVER_{name.upper()}"] = getattr(options, name)
    # In place of this process, so that signals and exit codes are the program's own. -P: a folder `services` or `jobs`
    # where the command was typed is none of ours.
    os.execv(sys.executable, [sys.executable, "-P", "-m", program.module])  # noqa: S606 - a module of ours


def program_of(job: JobDescription) -> Program:
    """What starts the job's own process, with the extra that must be installed for it."""
    return Program(job.module, job.extra if job.needs else "spark", (*_OF_JOBS, *job.needs))


def start_job(options: argparse.Namespace) -> int:
    """`keyhole job`: all that the job needs here, or its own process alone. Raises KeyholeError."""
    if options.external or "KEYHOLE_JOB_SERVERS" in os.environ:
        if options.verify or options.chaos or options.json or options.seconds is not None:
            raise WrongUsage(
                "--seconds, --verify, --chaos and --json are of a run with all that the job needs. Here it is only the "
                "job's own process, as --external or KEYHOLE_JOB_SERVERS says: leave them out, or that"
            )
        return become(program_of(described(options.name)), options)
    require("a job on this machine", "demo", _FOR_THE_DEMO)
    from keyhole.demo.job import run_job
    from keyhole.demo.runner import RunOptions

    chosen = described(options.name)
    require(f"the job {chosen.name}", f"demo,{chosen.extra}", (*chosen.needs, *chosen.source_needs))
    return run_job(options.name, RunOptions(options.seconds, options.verify, options.json, options.chaos))


def start_demo(options: argparse.Namespace) -> int:
    """Runs `keyhole demo` to its end; returns the exit code. Raises KeyholeError."""
    require("the demo", "demo", _FOR_THE_DEMO)
    from keyhole.demo.command import run_demo
    from keyhole.demo.runner import RunOptions

    chosen = RunOptions(options.seconds, options.verify, options.json, options.chaos)
    return run_demo(chosen, sensors=options.sensors, rate=options.rate, real_time=options.realtime)


def start_feed(options: argparse.Namespace) -> int:
    """Runs `keyhole feed` to its end; returns the exit code. Raises KeyholeError."""
    require("keyhole feed", "cli,kafka", _TO_FEED)
    from keyhole.cli import feed

    return feed.run(options)
