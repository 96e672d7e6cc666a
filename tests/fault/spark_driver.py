"""`python -m tests.fault.spark_driver`: a driver with Spark, for the whole write path at a slower pace.

FAULT_DRIVER as tests.fault.driver. Its source gives each batch its number, so that batch n is what the
workload says it is; one streaming query feeds two sinks, under a query name each, with about half of its states each.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from keyhole import logs
from keyhole.config import job_config
from keyhole.errors import KeyholeError
from keyhole.spark import queryable
from keyhole.spark.running import ROCKSDB
from keyhole.spark.session import local_settings, start_session
from keyhole.testing.kill_points import KillPoints
from tests.fault import hooks, planted_driver
from tests.fault.alerts import alerting
from tests.fault.dealing import dealing
from tests.fault.driver import Recorder, Settings, wait_out_pause
from tests.fault.history import Ended
from tests.fault.journeys import ROWS, exposing, passed
from tests.fault.spark_sinks import sinks_of
from tests.fault.workload import ALERTS, EXPOSED, OPERATORS, Workload, watermark_ms

_SCHEMA = f"{ROWS}, at_ms bigint"
_WATERMARK = "watermark"
_CONCURRENT = "CONCURRENT_STREAM_LOG_UPDATE"
# Spark says it by name, or in words, by where it noticed.
_SIGNS_OF_CONCURRENT = (_CONCURRENT, "Concurrent update to the log")


def source(spark: SparkSession, settings: Settings) -> DataFrame:
    """Batch n is what the workload says of n: the source gives each batch one number, and the rows are made of that.

    Not a directory of files: a driver that is killed after it has noted a file, and before it has noted the batch,
    leaves a batch of two files behind. That is right of Spark, and a batch the workload knows nothing of.
    """
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1).load()
    workload, states = Workload(settings.seed), settings.states

    @f.udf(f"array<struct<{_SCHEMA}>>")
    def rows(number: int) -> list[tuple[Any, ...]]:
        batch = workload.batch(number)
        made = [
            (state, of.key, of.map_key, of.op.value, n, list(of.fields) or None, None)
            for state in states
            for n, of in enumerate(batch.of(state))
        ]
        # After the batch, the watermark is what the workload says.
        return [*made, (_WATERMARK, "", None, None, None, None, watermark_ms(number + 1))]

    return numbers.select(f.inline(rows("value")))


def halves(states: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """By query. The exposed ones are of one, as their processor is; alerts come after the notices that they read."""
    exposed = [state for state in states if state in EXPOSED]
    others = [state for state in states if state not in EXPOSED]
    named = {"first": (*exposed, *others[::2]), "second": tuple(others[1::2])}
    return {query: of for query, of in named.items() if of}


def run(settings: Settings, observer: dict[str, Recorder]) -> None:
    """Runs until it is killed, or the query ends with an error."""
    directory = Path(settings.directory)
    spark_settings = local_settings([], directory / "spark", cores=1, partitions=2) | {
        "spark.log.level": "ERROR",
        "spark.driver.memory": "512m",
        **ROCKSDB,  # what a processor's variables need
    }
    if settings.executors:
        # Executors as processes of their own, which can be killed. They are started by Spark's own scripts.
        os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
        spark_settings |= {
            "spark.master": f"local-cluster[{settings.executors},1,1024]",
            "spark.executor.memory": "512m",
        }
    spark = start_session("fault", spark_settings)
    processor = exposing(settings.states)
    application, recorder = job_config().application, observer["first"]
    selects = {state: dealing(state, settings.subtasks, recorder) for state in OPERATORS}
    selects[ALERTS] = alerting(application, settings.proxy, recorder)
    sinks = [
        queryable.together(
            *sinks_of(states, settings.standbys, processor, selects, settings.subtasks),
            query=name,
            observer=observer[name],
        )
        for name, states in halves(settings.states).items()
    ]

    def each(rows: DataFrame, batch: int) -> None:
        wait_out_pause(directory)
        for feed in sinks:
            feed(rows, batch)

    rows = source(spark, settings).withColumn("at", f.timestamp_millis("at_ms")).withWatermark("at", "0 seconds")
    query = (
        passed(rows, processor)
        .writeStream.outputMode("append")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .foreachBatch(each)
        .start()
    )
    try:
        query.awaitTermination()
    except Exception:
        # Spark quotes the error of a sink as text; the sink has the error itself.
        failures = [feed.failure for feed in sinks if feed.failure is not None]
        if failures:
            raise failures[0] from None
        raise


def main() -> int:
    """As tests.fault.driver.main."""
    settings = msgspec.json.decode(os.environ["FAULT_DRIVER"], type=Settings)
    logs.configure("INFO")
    planted_driver.plant(os.environ.get("FAULT_PLANT", ""))
    steps, clock = Path(settings.directory) / "steps", hooks.clock()
    kill_points = KillPoints.from_environ(os.environ)
    recorders = {name: Recorder(steps, states, clock, kill_points) for name, states in halves(settings.states).items()}
    name = f"driver {os.getpid()}"
    try:
        run(settings, recorders)
    except KeyholeError as error:
        recorders["first"].record(Ended(time.monotonic(), name, type(error).reason, error.message))
    except Exception as error:  # noqa: BLE001 - the top of the process: the harness must hear of it
        # One that was taken for dead has completed the batch that this one runs again: Spark takes one of them.
        reason = _CONCURRENT if any(sign in str(error) for sign in _SIGNS_OF_CONCURRENT) else "INTERNAL"
        recorders["first"].record(Ended(time.monotonic(), name, reason, str(error)[:2000]))
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
