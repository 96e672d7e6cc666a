"""A job in a process of its own, so that it can be killed: what runs in the process, and what a test does with it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from keyhole import logs
from keyhole.config import JobConfig
from keyhole.local.processes import Child
from keyhole.protocol.failpoints import Step
from keyhole.spark.session import local_settings, start_session
from keyhole.testing.kill_points import KillPoints
from tests.support.pipeline import PATIENCE_SECONDS

_OPTIONS = "KILLABLE_JOB"
_DIRECTORY = "directory"


def run_job(feed: Callable[..., None]) -> None:
    """The process: `feed(spark, observer=..., **options)`, until it ends or is killed."""
    options = json.loads(os.environ[_OPTIONS])
    logs.configure("INFO")
    settings = local_settings([], Path(options.pop(_DIRECTORY)) / "spark")
    spark = start_session("killable", settings | {"spark.log.level": "ERROR"})
    feed(spark, observer=KillPoints.from_environ(os.environ), **options)
    spark.stop()


def run_until_killed(
    module: str, options: Mapping[str, str], config: JobConfig, directory: Path, step: Step, epoch: int
) -> None:
    """The test: runs a module that calls `run_job`, which kills itself at the step of the epoch.

    Args:
        options: What `feed` is given.
        config: Of the job's application.
        directory: For its log, and Spark's files.
    """
    marker = directory / "killed"
    environ = {
        **os.environ,
        _OPTIONS: json.dumps({**options, _DIRECTORY: str(directory)}),
        "KEYHOLE_JOB_APPLICATION": config.application,
        "KEYHOLE_JOB_SERVERS": ",".join(config.servers),
        "KEYHOLE_JOB_BOOTSTRAP_SERVERS": config.bootstrap_servers,
        **KillPoints.environ(step, epoch, marker),
    }
    driver = Child("driver", [sys.executable, "-m", module], directory / "driver.log", environ)
    try:
        assert driver.wait(PATIENCE_SECONDS) is not None, driver.output()[-3000:]
        assert marker.exists(), driver.output()[-3000:]
        assert marker.read_text() == f"{step} {epoch}"
    finally:
        driver.kill()
