"""A driver in a process of its own, so that it can be killed: sums that begin with a history, and go on with a stream.

`python -m tests.support.bootstrapping_job`; KEYHOLE_JOB_* as any job, KILL_* as keyhole.testing has them, and
BOOTSTRAPPING_JOB, JSON: history (a folder of Parquet), stream (a folder of JSON lines; all of it is taken), checkpoint,
directory.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from keyhole import logs
from keyhole.spark import queryable
from keyhole.spark.session import local_session, local_settings
from keyhole.testing.kill_points import KillPoints

STATE = "spent"


def main() -> None:
    """Runs until it is killed, or has taken all."""
    options = json.loads(os.environ["BOOTSTRAPPING_JOB"])
    logs.configure("INFO")
    settings = local_settings([], Path(options["directory"]) / "spark")
    spark = local_session("bootstrapping", settings | {"spark.log.level": "ERROR"})
    spent = queryable.reducing(
        STATE,
        key="customer",
        reducers={"amount": "sum", "payment": "count"},
        key_groups=8,
        query="payments",
        strict=True,
        observer=KillPoints.from_environ(os.environ),
    )
    spent.bootstrap(spark.read.parquet(options["history"]))
    payments = spark.readStream.schema("customer string, payment long, amount long").json(options["stream"])
    writing = payments.writeStream.queryName("payments").option("checkpointLocation", options["checkpoint"])
    writing.trigger(availableNow=True).foreachBatch(spent).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
