"""Drivers that stand by, without Spark and Kafka: what is refused at once, and a warming that is given up."""

from __future__ import annotations

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
