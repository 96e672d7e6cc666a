"""Rows of a batch with what it reads of the broadcast state, as tasks of a job get it. For a driver with Spark."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from keyhole.spark.driver.micro_batch import current
from keyhole.spark.queryable import BroadcastReader
from tests.fault.driver import Recorder
from tests.fault.history import Pinned
from tests.fault.states import FIELDS, NAMED
from tests.fault.workload import ALERTS, NOTICES

# Its servers may all be away for as long.
_READ_SECONDS = 120.0

Alerting = Callable[[DataFrame], DataFrame]


def alerting(application: str, proxy: str, recorder: Recorder) -> Alerting:
    """Makes the rows of ALERTS of a batch's: each has the number of its key's notice; 0: there is none.

    Args:
        recorder: Is told which epoch of NOTICES each batch reads.
    """
    reader = BroadcastReader(
        f"{application}/{NOTICES}",
        proxy=proxy,
        timeout=_READ_SECONDS,
        or_empty=", ".join(["k string", *(f"{name} bigint" for name in FIELDS[NOTICES])]),
    )

    def alerts(rows: DataFrame) -> DataFrame:
        notices = reader.read(rows).select("k", f.col("number").alias("notice"))
        recorder.record(Pinned(time.monotonic(), current(rows).number, reader.epoch(rows)))
        own = [f.col("fields")[at].alias(name) for at, name in enumerate(NAMED)]
        notice = f.coalesce("notice", f.lit(0)).alias("notice")
        return rows.where(f.col("state") == ALERTS).join(notices, "k", "left").select("k", "op", *own, notice)

    return alerts
