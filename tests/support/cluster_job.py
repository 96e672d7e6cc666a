"""A driver with executors in processes of their own, which can be killed: two states from one query over Kafka.

`python -m tests.support.cluster_job`; KEYHOLE_JOB_* as any job, and CLUSTER_JOB, JSON: topic, bootstrap_servers,
checkpoint, directory, jars, per_trigger. Keeps `query.json` in the directory: id and run id of the query while it runs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from keyhole import logs
from keyhole.class_archive import reading
from keyhole.spark import queryable
from keyhole.spark.session import archive_of_spark, java_options, local_settings, start_session
from tests.support.counting_job import events

LATEST, SUMS = "latest", "sums"


def _spark_home(home: Path) -> Path:
    """Spark starts its executors by its own scripts and keeps their files in its home: not in the installed package."""
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return home


def _executor_options(directory: Path) -> str:
    """They begin with the driver's classes, so as not to read and check them three times more."""
    archive = archive_of_spark(os.environ)
    return java_options(directory, reading(archive) if archive is not None else [])


def main() -> None:
    """Runs until it is killed, or its query fails."""
    options = json.loads(os.environ["CLUSTER_JOB"])
    logs.configure("INFO")
    directory = Path(options["directory"])
    settings = local_settings([Path(jar) for jar in options["jars"]], directory / "spark", partitions=3) | {
        "spark.master": "local-cluster[3,1,1024]",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": _executor_options(directory),
        "spark.log.level": "ERROR",
    }
    # Only now: the archive of classes is that of the Spark which is installed.
    os.environ["SPARK_HOME"] = str(_spark_home(directory / "spark-home"))
    spark = start_session("cluster", settings)
    latest = queryable.value(LATEST, key="k", order_by="v", key_groups=12, standbys=1, query=LATEST)
    reducers = {"total": "sum", "events": "count"}
    sums = queryable.reducing(SUMS, key="k", reducers=reducers, key_groups=12, query=SUMS)

    def both(rows: DataFrame, batch: int) -> None:
        latest(rows, batch)
        sums(rows.select("k", f.col("v").alias("total"), f.col("v").alias("events")), batch)

    query = (
        events(spark, options["topic"], options["bootstrap_servers"], options["per_trigger"])
        .writeStream.option("checkpointLocation", options["checkpoint"])
        .foreachBatch(both)
        .start()
    )
    file = directory / "query.json"
    while not query.awaitTermination(1):
        file.with_suffix(".new").write_text(json.dumps({"id": query.id, "run_id": query.runId}))
        file.with_suffix(".new").rename(file)


if __name__ == "__main__":
    main()
