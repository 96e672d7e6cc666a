"""A Spark session for one machine, which the embedded default and the tests run on, or for a cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import SparkSession


def local_settings(jars: Sequence[Path], directory: Path, *, cores: int = 2, partitions: int = 4) -> dict[str, str]:
    """Spark's settings for one machine.

    Args:
        jars: The connector's jars (keyhole.local.jars), by path: `spark.jars.packages` can't leave one out.
        directory: For all that Spark writes beside checkpoints (shuffle files, warehouse, temporary files).
        partitions: `spark.sql.shuffle.partitions`. A stateful query keeps the number of its checkpoint.
    """
    return {
        **_of_every_job(jars, partitions),
        "spark.master": f"local[{cores}]",
        # Only this machine may connect; and a host name that doesn't resolve must not stop Spark.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.local.dir": str(directory),
        # A JVM that is killed leaves its temporary files behind, where they belong to nobody.
        "spark.driver.extraJavaOptions": f'"-Djava.io.tmpdir={directory}" -XX:-UsePerfData',
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }


def cluster_settings(jars: Sequence[Path], *, partitions: int) -> dict[str, str]:
    """Spark's settings for the driver of a cluster: what is no job's own is in spark-defaults.conf of SPARK_CONF_DIR.

    Args:
        jars: By path, for the executors to fetch; none where their image has them on its class path.
        partitions: As for `local_settings`.
    """
    return _of_every_job(jars, partitions)


def _of_every_job(jars: Sequence[Path], partitions: int) -> dict[str, str]:
    settings = {"spark.sql.shuffle.partitions": str(partitions), "spark.sql.session.timeZone": "UTC"}
    if jars:
        settings["spark.jars"] = ",".join(str(jar) for jar in jars)
    return settings


def start_session(application: str, settings: Mapping[str, str]) -> SparkSession:
    """Starts Spark in this process (and its JVM beside it), or returns the session that it already has.

    Python workers run this very interpreter, which has Keyhole: Spark's default is any `python3` on PATH.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if "spark.local.dir" in settings:
        Path(settings["spark.local.dir"]).mkdir(parents=True, exist_ok=True)
    builder = SparkSession.builder.appName(application)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
