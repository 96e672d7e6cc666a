"""Bugs that are planted into a driver with Spark, as tests.fault.planted does into state servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from keyhole.spark import staging
from keyhole.spark.broadcasting import BroadcastReader
from keyhole.spark.exposed import CHANGES_COLUMN, STATE_COLUMN
from tests.fault.workload import STOPS


def drop_changes() -> None:
    """Some of the changes of an exposed map don't get from Spark's operator to the tasks that stage them."""
    changes_of = staging.changes_of

    def without(states: Sequence[str], batch: DataFrame) -> DataFrame:
        lost = (f.col(STATE_COLUMN) == STOPS) & (f.crc32(CHANGES_COLUMN) % 2 == 0)
        return changes_of(states, batch).where(~lost)

    staging.changes_of = without  # type: ignore[assignment]


def miss_entries() -> None:
    """What a batch reads of a broadcast state lacks some of it."""
    read = BroadcastReader.read

    def missing(self: BroadcastReader, data: DataFrame) -> DataFrame:
        return read(self, data).where(f.crc32("k") % 2 == 0)

    BroadcastReader.read = missing  # type: ignore[method-assign]


PLANTS: Mapping[str, Callable[[], None]] = {"dropped changes": drop_changes, "missed entries": miss_entries}


def plant(names: str) -> None:
    """Changes the driver of this process, by one of PLANTS or several, with commas. Empty: nothing."""
    for name in names.split(",") if names else ():
        PLANTS[name]()
