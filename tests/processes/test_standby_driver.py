"""Drivers that stand by for each other: one leads, and the next one goes on where it is killed, or ends in order.

The state is a sum: what a second driver would add again shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keyhole.local.processes import Child
from tests.support.pipeline import Pipeline

_GROUP = {"KEYHOLE_JOB_DRIVER_GROUP": "counting"}
_STANDS_BY = "standing by: another driver of the job leads"


@pytest.fixture
def pipeline(kafka: str, spark_jars: list[Path], tmp_path: Path) -> Iterator[Pipeline]:
    running = Pipeline(tmp_path, kafka, spark_jars)
    try:
        running.start_server()
        yield running
    finally:
        running.close()


def test_the_driver_that_stands_by_goes_on_when_the_one_that_leads_is_killed_or_ends(pipeline: Pipeline) -> None:
    drivers: list[Child] = []

    def stand_by(name: str) -> Child:
        """Another driver, which has found out that it is not the one that leads."""
        drivers.append(pipeline.start_driver(_GROUP, name=name))
        standing = drivers[-1]
        pipeline.await_(lambda: _STANDS_BY in standing.output(), f"{name} to stand by")
        return standing

    def recounted() -> None:
        pipeline.produce(150)
        pipeline.await_recount()

    try:
        first = pipeline.start_driver(_GROUP, name="first")
        drivers.append(first)
        recounted()
        second = stand_by("second")
        recounted()
        assert first.exit_code is None, "nobody has fenced it"

        first.kill()
        recounted()
        assert second.exit_code is None

        third = stand_by("third")
        recounted()
        assert second.exit_code is None, "who comes later doesn't take the lead"

        pipeline.driver = third
        second.terminate()
        recounted()
        assert "Fenced" not in second.output()
    finally:
        for driver in drivers:
            driver.kill()
