"""Drivers that stand by, without Spark and Kafka: what is refused at once, and a warming that is given up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from keyhole.config import JobConfig
from keyhole.errors import InvalidConfiguration
from keyhole.spark.driver.warming import warm_up
from keyhole.spark.standing_by import await_lead


class WithoutExecutors:
    """A session, what is made by it, and its query, which never ends by itself."""

    def __init__(self) -> None:
        self.stopped = 0
        self.asked: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return self if name in ("conf", "readStream", "writeStream") else lambda *_, **__: self

    def awaitTermination(self, *timeout: float) -> bool:  # noqa: N802 - as PySpark calls it
        self.asked.append(timeout)
        return False

    def stop(self) -> None:
        self.stopped += 1


@pytest.mark.parametrize("name", ["the orders", "a/b", "a.b", "x" * 101])
def test_a_name_that_no_group_should_have_is_refused_by_the_name_of_its_setting(name: str) -> None:
    config = JobConfig(application="shop", servers=("a:1",), bootstrap_servers="127.0.0.1:1", driver_group=name)
    with pytest.raises(InvalidConfiguration, match=r"KEYHOLE_JOB_DRIVER_GROUP is .* 1 to 100 letters"):
        await_lead(config=config)


def test_a_warming_for_which_there_are_no_executors_is_given_up_when_the_driver_is_to_end() -> None:
    session = WithoutExecutors()
    warm_up(cast("SparkSession", session), lambda: len(session.asked) == 2)
    assert session.stopped == 1
    assert all(session.asked), "each wait ends by itself"


@pytest.mark.parametrize("group", ["orders", ""])
def test_a_driver_of_a_group_ends_in_order_at_sigterm(group: str) -> None:
    """So that it leaves the group. Another one is killed by it, as any process."""
    script = (
        "import atexit, time\n"
        "from keyhole.spark.standing_by import end_at_sigterm\n"
        "atexit.register(print, 'ended')\n"
        "end_at_sigterm()\n"
        "print('ready', flush=True)\n"
        "time.sleep(3600)\n"
    )
    # Without what makes coverage measure it, which has a handler of its own.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    environ["KEYHOLE_JOB_DRIVER_GROUP"] = group
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        driver.send_signal(signal.SIGTERM)
        said = driver.stdout.read()
    assert (driver.returncode, said) == ((143, "ended\n") if group else (-signal.SIGTERM, ""))
