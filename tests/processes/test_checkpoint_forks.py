"""How many processes Spark starts for the files of a checkpoint in a local directory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

JOB = """
import sys
from pathlib import Path
from keyhole.spark.session import local_settings, start_session

directory, log = Path(sys.argv[1]), Path(sys.argv[2])
spark = start_session("forks", local_settings([], directory / "spark", partitions=2) | {"spark.log.level": "ERROR"})
source = directory / "source"
source.mkdir()
query = (
    spark.readStream.schema("key string").json(str(source)).groupBy("key").count().writeStream.outputMode("update")
    .foreachBatch(lambda rows, number: rows.collect()).option("checkpointLocation", str(directory / "checkpoint"))
    .start()
)
for number in range(3):
    # Elsewhere first: the query, which is running, would take half of a file for the whole.
    (directory / "written").write_text('{"key": "a"}')
    (directory / "written").rename(source / f"{number}.json")
    query.processAllAvailable()
    with log.open("a") as file:
        file.write("batch\\n")
query.stop()
spark.stop()
"""

SHIM = """#!/bin/sh
echo {name} >> {log}
exec {real} "$@"
"""


def test_a_batch_looks_no_link_up_and_starts_one_process_for_each_file_that_it_writes(tmp_path: Path) -> None:
    log, shims = tmp_path / "log", tmp_path / "bin"
    shims.mkdir()
    for name in ("readlink", "chmod"):
        real = subprocess.run(["which", name], capture_output=True, text=True, check=True).stdout.strip()
        (shims / name).write_text(SHIM.format(name=name, log=log, real=real))
        (shims / name).chmod(0o755)
    environ = {**os.environ, "PATH": f"{shims}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(tmp_path), str(log)], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    last = Counter(log.read_text().split("batch\n")[2].split())
    # The files of a batch: the source's log, offsets, commits, and a delta in each of two partitions; and of each the
    # file with its checksum. Spark's default looks four links up for each as well.
    assert last["readlink"] == 0
    assert 0 < last["chmod"] <= 2 * 5 * 2
    assert (tmp_path / "checkpoint" / "offsets" / "2").exists()
