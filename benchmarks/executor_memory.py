"""How much memory an executor of the chart's takes over time: a job of jobs/ with the chart's own settings of Spark.

Its executor is in a control group with the memory limit that its container has on Kubernetes. Where the group is full
the kernel kills as it does there.

    uv run python -m benchmarks.executor_memory OUT.csv [--minutes 30] [--values charts/keyhole/ci/small.yaml]
        [--rate 1000] [--sensors 1000] [--conf NAME=VALUE ...] [--environ NAME=VALUE ...] [--native]

Needs Linux's control groups for memory, version 1 or 2, with the right to make some, and Helm. One row per sample, in
MiB: `working` is what the kubelet counts against the limit (the group's usage without inactive file pages); `heap` is
what the JVM's heap has of it, used or not, `java` the JVM's other memory, `python` the share of the Python workers and
their daemon. `killed` counts what the kernel has killed. The driver, Kafka, state server and proxy are outside of the
group.
`benchmarks.memory_curve` draws it.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyspark
import yaml

from benchmarks.control_group import ControlGroup, control_group
from keyhole.demo.described_jobs import described
from keyhole.local.jars import JarSet, default_cache_dir, fetch
from keyhole.local.java import find_java
from keyhole.local.stack import Jars, Stack

CHART = Path(__file__).resolve().parents[1] / "charts" / "keyhole"
SAMPLE_SECONDS = 5.0
NATIVE_SECONDS = 60.0
MIB = 1 << 20
# Of Kubernetes: here executors are processes of a local cluster.
_OF_KUBERNETES = (
    "spark.kubernetes.",
    "spark.master",
    "spark.submit.",
    "spark.driver.",
    "spark.blockManager.port",
    "spark.sql.streaming.checkpointFileManagerClass",
)
_ADDRESS = re.compile(r"0x([0-9a-f]+)")
_MAPPING = re.compile(r"([0-9a-f]+)-[0-9a-f]+ ")
_EXECUTOR = "CoarseGrainedExecutorBackend"
COLUMNS = ("seconds", "working", "heap", "java", "python", "pythons", "killed", "limit")


def main() -> None:
    """Prints a line per minute; the file has all samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--job", default="temperature_monitor")
    parser.add_argument("--values", type=Path, action="append", default=[])
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--sensors", type=int, default=1000)
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark's")
    parser.add_argument("--environ", action="append", default=[], metavar="NAME=VALUE", help="of the executor alone")
    parser.add_argument("--limit", type=int, help="of the group, MiB; without it, what Spark would ask for")
    parser.add_argument("--native", action="store_true", help="the JVM's own account of its memory, once a minute")
    options = parser.parse_args()
    conf = chart_conf(options.job, options.values) | dict(of.split("=", 1) for of in options.conf)
    limit = options.limit or sum(mebibytes(conf[f"spark.executor.{of}"]) for of in ("memory", "memoryOverhead"))
    with tempfile.TemporaryDirectory(prefix="keyhole-memory-") as directory, control_group(limit * MIB) as group:
        environ = dict(of.split("=", 1) for of in options.environ)
        with running(Path(directory), conf, group, environ, options):
            watch(options, group, limit)


def chart_conf(job: str, values: Sequence[Path]) -> dict[str, str]:
    """What the chart gives a job's driver as spark-defaults.conf, without what is Kubernetes' own."""
    given = [word for path in values for word in ("--values", str(path))]
    name = job.replace("_", "-")
    more = ["--set", f"jobs[0].name={name},jobs[0].checkpoint.url=s3a://a/b", "--set", "kafka.enabled=true"]
    command = ["helm", "template", "keyhole", str(CHART), "--kube-version", "1.34.0", *given, *more]
    shown = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = next(
        of["data"]["spark-defaults.conf"]
        for of in yaml.safe_load_all(shown)
        if of and of["kind"] == "ConfigMap" and of["metadata"]["name"] == f"keyhole-{name}-spark"
    ).splitlines()
    conf = dict(line.split(" ", 1) for line in lines)
    return {
        name: value
        for name, value in conf.items()
        if not name.startswith(_OF_KUBERNETES) and not name.endswith("extraClassPath")
    }


def mebibytes(text: str) -> int:
    """Of an amount as Spark writes it: 512m, 1g."""
    return int(text[:-1]) * {"m": 1, "g": 1024}[text[-1]]


@contextlib.contextmanager
def running(
    directory: Path,
    conf: Mapping[str, str],
    group: ControlGroup,
    environ: Mapping[str, str],
    options: argparse.Namespace,
) -> Iterator[Stack]:
    """The job with all that it needs, until the end."""
    java = find_java(os.environ)
    jars = Jars(
        fetch(JarSet.KAFKA, default_cache_dir(os.environ)), fetch(JarSet.SPARK_KAFKA, default_cache_dir(os.environ))
    )
    job = described(options.job)
    heap = conf["spark.executor.memory"]
    # As keyhole.spark.container starts it: the heap has its size from the beginning.
    java_options = f"{conf.get('spark.executor.extraJavaOptions', '')} -Xms{heap}".strip()
    if options.native:
        java_options += " -XX:NativeMemoryTracking=summary"
    (directory / "conf").mkdir()
    (directory / "conf" / "spark-defaults.conf").write_text(
        "".join(
            f"{name} {value}\n"
            for name, value in {
                **conf,
                "spark.master": f"local-cluster[1,{conf['spark.executor.cores']},{mebibytes(heap)}]",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.memory": "1g",
                "spark.executor.extraJavaOptions": java_options,
                "spark.executor.extraClassPath": ":".join(map(str, jars.spark)),
                "spark.driver.extraClassPath": ":".join(map(str, jars.spark)),
                "spark.local.dir": str(directory / "spark-local"),
                "spark.log.level": "WARN",
            }.items()
        )
    )
    home = _java_home(directory, java.home, group, environ)
    ours = {
        f"{job.prefix}SPARK": "cluster",
        "SPARK_CONF_DIR": str(directory / "conf"),
        "SPARK_HOME": str(_spark_home(directory)),
        "JAVA_HOME": str(home),
        # The archive of classes is no part of the images.
        "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={directory}",
    }
    sources = {f"{job.source_prefix}RATE": str(options.rate)}
    if options.job == "temperature_monitor":
        sources[f"{job.source_prefix}SENSORS"] = str(options.sensors)
    with Stack(jars, java, os.environ, lambda text: print(text, flush=True)) as stack:
        spec = job.spec(directory, directory / "checkpoint", "", {**os.environ, **sources})
        checkpoint = {f"{job.prefix}CHECKPOINT": f"file://{directory}/checkpoint"}
        stack.start(
            type(spec)(
                job=spec.job,
                source=spec.source,
                source_prefix=spec.source_prefix,
                topics=spec.topics,
                job_environ={**spec.job_environ, **ours, **checkpoint},
                source_environ=spec.source_environ,
            )
        )
        try:
            yield stack
        finally:
            print(stack.said("job")[-3000:])


def _java_home(directory: Path, real: Path, group: ControlGroup, environ: Mapping[str, str]) -> Path:
    """Java, which goes into the group, with the executor's environment, where it is an executor."""
    home = directory / "java"
    (home / "bin").mkdir(parents=True)
    export = "".join(f" && export {name}={shlex.quote(value)}" for name, value in environ.items())
    java = home / "bin" / "java"
    java.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *{_EXECUTOR}*) echo $$ > {group.processes}{export};; esac\n'
        f'exec {real}/bin/java "$@"\n'
    )
    java.chmod(0o755)
    return home


def _spark_home(directory: Path) -> Path:
    home = directory / "spark-home"
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return home


def watch(options: argparse.Namespace, group: ControlGroup, limit: int) -> None:
    """Takes samples until the time is over, from the executor's first one on."""
    while not group.pids():
        time.sleep(0.5)
    samples = Samples(group)
    began = time.monotonic()
    spoke = native = began
    with options.out.open("w", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS)
        writer.writeheader()
        while (now := time.monotonic()) < began + options.minutes * 60:
            row = {"seconds": round(now - began, 1), "limit": limit, **samples.take()}
            writer.writerow(row)
            out.flush()
            if now >= spoke:
                spoke += 60
                print(row, flush=True)
            if options.native and now >= native:
                native += NATIVE_SECONDS
                for pid in group.pids():
                    if _command(pid) == "java":
                        with options.out.with_suffix(".native").open("a") as account:
                            print(f"== {row['seconds']}\n{_jcmd(pid, 'VM.native_memory', 'summary')}", file=account)
            time.sleep(max(0.0, SAMPLE_SECONDS - (time.monotonic() - now)))


class Samples:
    """The memory of one control group, by what takes it: each `take` is a sample."""

    def __init__(self, group: ControlGroup) -> None:
        self._group = group
        self._heaps: dict[int, tuple[int, int]] = {}

    def take(self) -> dict[str, float]:
        """The group's memory now, MiB."""
        shares = {"heap": 0, "java": 0, "python": 0}
        pythons = 0
        for pid in self._group.pids():
            with contextlib.suppress(OSError):  # it has just ended
                if _command(pid) == "java":
                    heap = self._heap(pid)
                    shares["heap"] += heap
                    shares["java"] += _share(pid) - heap
                elif _command(pid).startswith("python"):
                    shares["python"] += _share(pid)
                    pythons += 1
        return {
            "working": round(self._group.working_set() / MIB, 1),
            **{name: round(share / MIB, 1) for name, share in shares.items()},
            "pythons": pythons,
            "killed": self._group.killed(),
        }

    def _heap(self, pid: int) -> int:
        """What is resident of the heap, bytes."""
        if pid not in self._heaps:
            lines = [line for line in _jcmd(pid, "GC.heap_info").splitlines() if "etaspace" not in line]
            ends = [int(end, 16) for line in lines for end in _ADDRESS.findall(line)]
            if not ends:
                return 0
            self._heaps[pid] = min(ends), max(ends)
        begin, end = self._heaps[pid]
        resident, within = 0, False
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            if mapping := _MAPPING.match(line):
                within = begin <= int(mapping[1], 16) < end
            elif within and line.startswith("Rss:"):
                resident += int(line.split()[1]) * 1024
        return resident


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _share(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _jcmd(pid: int, *words: str) -> str:
    done = subprocess.run(["jcmd", str(pid), *words], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
