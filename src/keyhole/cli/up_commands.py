"""The commands that keep all on this machine up: up, down, env and dev."""

from __future__ import annotations

import argparse
import os
import sys

from keyhole.installing import require

_TO_START = ("grpc", "rich", "grpc_health", "pyspark", "confluent_kafka", "lmdb", "jgo", "uvloop")


def run_up(options: argparse.Namespace) -> int:
    """Runs `keyhole up`; returns the exit code. Raises KeyholeError."""
    require("keyhole up", "demo", _TO_START)
    from rich.console import Console

    from keyhole.up.bringing_up import UpOptions, up
    from keyhole.up.home import Home

    chosen = UpOptions(options.servers, options.ephemeral, options.foreground, options.topics)
    return up(Home(options.dir), chosen, os.environ, Console(highlight=False))


def run_down(options: argparse.Namespace) -> int:
    """Runs `keyhole down`; returns the exit code. Raises KeyholeError."""
    require("keyhole down", "demo", _TO_START)
    from rich.console import Console

    from keyhole.up.home import Home
    from keyhole.up.taking_down import down

    return down(Home(options.dir), Console(highlight=False), delete=options.delete)


def run_env(options: argparse.Namespace) -> int:
    """Runs `keyhole env`; returns the exit code. Raises KeyholeError."""
    from keyhole.up.exports import exports, running, variables
    from keyhole.up.home import Home

    print(exports(variables(running(Home(options.dir)), sys.executable), options.shell), end="")
    return 0


def run_dev(options: argparse.Namespace) -> int:
    """Runs `keyhole dev`; returns the exit code. Raises KeyholeError."""
    require("keyhole dev", "demo", _TO_START)
    from rich.console import Console

    from keyhole.up.developing import DevOptions, develop
    from keyhole.up.home import DEFAULT_DIRECTORY, Home

    home = Home(options.dir or options.job.parent / DEFAULT_DIRECTORY)
    chosen = DevOptions(options.watch, options.topics, options.keep, options.fresh, options.servers, options.ephemeral)
    return develop(options.job, home, chosen, os.environ, Console(highlight=False))
