"""`python -m tests.fault.spark_driver`: a driver with Spark, for the whole write path at a slower pace.

FAULT_DRIVER as tests.fault.driver. Its source is a directory with one file per batch, so that batch n is what the
workload says it is; each state is fed by a query name of its own, from one streaming query.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import msgspec
import pyspark
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from keyhole import logs
from keyhole.errors import KeyholeError
from keyhole.spark import queryable
from keyhole.spark.session import local_session, local_settings
from keyhole.spark.sink import Sink
from keyhole.testing.kill_points import KillPoints
from tests.fault import hooks
from tests.fault.driver import Recorder, Settings, wait_out_pause
from tests.fault.history import Ended
from tests.fault.workload import KEY_GROUPS, STATES, SUMS, VALUES, Workload

_SCHEMA = "state string, k string, fields array<bigint>"
_FIRST_SECOND = 1_600_000_000
_AHEAD = 20
_CONCURRENT = "CONCURRENT_STREAM_LOG_UPDATE"
# Spark says it by name, or in words, by where it noticed.
_SIGNS_OF_CONCURRENT = (_CONCURRENT, "Concurrent update to the log")


class Source:
    """The directory of batches: some more than have been taken."""

    def __init__(self, settings: Settings) -> None:
        self._workload = Workload(settings.seed, settings.deletes)
        self._states = settings.states
        self.directory = Path(settings.directory) / "source"
        self._next = Path(settings.directory) / "source.next"
        self.directory.mkdir(exist_ok=True)

    def fill(self, up_to: int) -> None:
        """Every batch up to this one is there. Batches come in the order of their files' times."""
        for number in range(len(list(self.directory.iterdir())), up_to + 1):
            batch = self._workload.batch(number)
            rows = [
                {"state": state, "k": key, "fields": row}
                for state in self._states
                for key, row in STATES[state][0](batch)
            ]
            self._next.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(self._next, (_FIRST_SECOND + number,) * 2)
            self._next.rename(self.directory / f"{number:08}.json")


def fields(rows: DataFrame, state: str, *names: str) -> DataFrame:
    """The rows of one state, its fields as columns."""
    columns = [f.col("fields")[number].alias(name) for number, name in enumerate(names)]
    return rows.where(f.col("state") == state).select("k", *columns)


def run(settings: Settings, observer: dict[str, Recorder]) -> None:
    """Runs until it is killed, or the query ends with an error."""
    directory = Path(settings.directory)
    source = Source(settings)
    source.fill(_AHEAD)
    spark_settings = local_settings([], directory / "spark", cores=1, partitions=2) | {
        "spark.log.level": "ERROR",
        "spark.driver.memory": "512m",
    }
    if settings.executors:
        # Executors as processes of their own, which can be killed. They are started by Spark's own scripts.
        os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
        spark_settings |= {
            "spark.master": f"local-cluster[{settings.executors},1,1024]",
            "spark.executor.memory": "512m",
        }
    spark = local_session("fault", spark_settings)
    copies = settings.standbys
    of_values = queryable.value(
        VALUES, key="k", key_groups=KEY_GROUPS, standbys=copies, query=VALUES, observer=observer[VALUES]
    )
    reducers = {"total": "sum", "count": "count", "highest": "max"}
    of_sums = queryable.reducing(
        SUMS, key="k", reducers=reducers, key_groups=KEY_GROUPS, standbys=copies, query=SUMS, observer=observer[SUMS]
    )
    sinks: list[Sink] = [of_values, of_sums]

    def each(rows: DataFrame, batch: int) -> None:
        wait_out_pause(directory)
        source.fill(batch + _AHEAD)
        of_values(fields(rows, VALUES, "batch", "number"), batch)
        of_sums(fields(rows, SUMS, "total", "count", "highest"), batch)

    query = (
        spark.readStream.schema(_SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .json(str(source.directory))
        .writeStream.outputMode("append")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .foreachBatch(each)
        .start()
    )
    try:
        query.awaitTermination()
    except Exception:
        # Spark quotes the error of a sink as text; the sink has the error itself.
        failures = [sink.failure for sink in sinks if sink.failure is not None]
        if failures:
            raise failures[0] from None
        raise


def main() -> int:
    """As tests.fault.driver.main."""
    settings = msgspec.json.decode(os.environ["FAULT_DRIVER"], type=Settings)
    logs.configure("INFO")
    steps, clock = Path(settings.directory) / "steps", hooks.clock()
    kill_points = KillPoints.from_environ(os.environ)
    recorders = {state: Recorder(steps, (state,), clock, kill_points) for state in settings.states}
    name = f"driver {os.getpid()}"
    try:
        run(settings, recorders)
    except KeyholeError as error:
        recorders[VALUES].record(Ended(time.monotonic(), name, type(error).reason, error.message))
    except Exception as error:  # noqa: BLE001 - the top of the process: the harness must hear of it
        # One that was taken for dead has completed the batch that this one runs again: Spark takes one of them.
        reason = _CONCURRENT if any(sign in str(error) for sign in _SIGNS_OF_CONCURRENT) else "INTERNAL"
        recorders[VALUES].record(Ended(time.monotonic(), name, reason, str(error)[:2000]))
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
