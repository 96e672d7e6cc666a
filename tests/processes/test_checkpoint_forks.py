"""How many processes Spark starts for the files of a checkpoint in a local directory, whoever has started the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyspark
import pytest

from keyhole.class_archive import reading
from keyhole.spark.session import archive_of_spark

JOB = """
import json
import sys
from pathlib import Path

directory = Path(sys.argv[1])
{made}
assert spark.conf.get("spark.sql.streaming.pollingDelay") == sys.argv[2]
source, checkpoint = directory / "source", directory / "checkpoint"
source.mkdir()
query = (
    spark.readStream.schema("key string").json(str(source)).groupBy("key").count().writeStream.outputMode("update")
    .foreachBatch(lambda rows, number: rows.collect()).option("checkpointLocation", str(checkpoint))
    .start()
)
flights = spark._jvm.jdk.jfr


def files():
    return {str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file()}


for number in range(3):
    before, recording, log = files(), flights.Recording(), directory / f"{number}.jfr"
    # All that the JVM starts, by whatever path, as the JVM itself says.
    recording.enable("jdk.ProcessStart")
    recording.start()
    # Elsewhere first: the query, which is running, would take half of a file for the whole.
    (directory / "written").write_text('{"key": "a"}')
    (directory / "written").rename(source / f"{number}.json")
    query.processAllAvailable()
    recording.stop()
    recording.dump(spark._jvm.java.io.File(str(log)).toPath())
events = flights.consumer.RecordingFile.readAllEvents(spark._jvm.java.io.File(str(log)).toPath())
commands = [event.getString("command") for event in events]
(directory / "told").write_text(json.dumps({"commands": commands, "files": sorted(files() - before)}))
query.stop()
spark.stop()
"""
OURS = """
from keyhole.spark.session import session
spark = session("forks", {"spark.log.level": "ERROR"})
"""
OF_ONES_OWN = """
from pyspark.sql import SparkSession
from keyhole.spark import queryable
builder = SparkSession.builder.config("spark.log.level", "ERROR").config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse"))
if "PYSPARK_GATEWAY_PORT" not in __import__("os").environ:
    builder.master("local[2]")
spark = queryable.configure(builder, checkpoint=f"file:{directory}").getOrCreate()
assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
assert spark.conf.get("spark.python.daemon.module") == "keyhole.spark.daemon"
assert spark.sparkContext.getConf().get("spark.driver.host") == "127.0.0.1"
"""
SUBMIT = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")


@pytest.mark.parametrize("made", [OURS, OF_ONES_OWN], ids=["Keyhole's session", "a builder of one's own"])
@pytest.mark.parametrize(
    ("starting", "polling"),
    [
        ([sys.executable], "50ms"),
        # What a submission says stays.
        ([SUBMIT, "--master", "local[2]", "--conf", "spark.sql.streaming.pollingDelay=7ms"], "7ms"),
    ],
    ids=["python", "spark-submit"],
)
def test_a_batch_starts_one_process_for_each_file_that_it_writes_and_no_other(
    starting: list[str], polling: str, made: str, tmp_path: Path
) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB.replace("{made}", made))
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(tmp_path)}
    # What spark-submit starts begins with the archive of classes, too: half of its processor time.
    if archive := archive_of_spark(os.environ):
        environ["JDK_JAVA_OPTIONS"] = " ".join([os.environ.get("JDK_JAVA_OPTIONS", ""), *reading(archive)])
    done = subprocess.run(
        [*starting, str(job), str(tmp_path), polling], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    noted = json.loads((tmp_path / "told").read_text())
    # The source's log, offsets, commits, and a delta in each of two partitions.
    written = [name for name in noted["files"] if not name.endswith(".crc")]
    assert len(written) == 5, noted["files"]
    # A chmod for each, as Hadoop has no native library here. Spark's default looks four links up for each as well.
    started = Counter(command.split()[0] for command in noted["commands"])
    # Spark asks once for the size of a page, with the first heartbeat of its executor, whenever that comes.
    started.pop("getconf", None)
    assert started == {"chmod": len(noted["files"])}
