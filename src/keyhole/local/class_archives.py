"""Makes the archives of classes that Kafka and Spark on this machine begin with (keyhole.class_archive): once for each
Java and each set of jars, by running both for a moment.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from keyhole.changelog.kafka.admin import KafkaAdmin
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.class_archive import in_use, writing
from keyhole.errors import KeyholeError, MachineError
from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka, archive_of_kafka
from keyhole.local.processes import Child, last_words
from keyhole.local.temporary import temporary_directory
from keyhole.spark.session import archive_of_spark

_SECONDS = 300
_KAFKA_SECONDS = 60.0
# Of each kind. One is left behind by each Spark that is installed somewhere else, as in a new clone.
_KEPT = 8

Make = Callable[[Path], None]
"""Runs the JVM so that it writes the archive to this path."""


def missing(
    java: Java, kafka_jars: Sequence[Path], environ: Mapping[str, str], *, spark: bool = True
) -> dict[Path, Make]:
    """The archives that are still to be made, and how. `spark`: also Spark's, beside Kafka's.

    Those that are there count as used: whoever asks will begin with them, and others that make new ones remove none.
    """
    makes: dict[Path, Make] = {
        archive_of_kafka(environ, java.executable, kafka_jars): lambda path: _run_kafka(java, kafka_jars, path),
    }
    of_spark = archive_of_spark({**environ, "JAVA_HOME": str(java.home)}) if spark else None
    if of_spark is not None:
        makes[of_spark] = lambda path: _run_spark(java, environ, path)
    return {path: make for path, make in makes.items() if not in_use(path)}


def make_archives(makes: Mapping[Path, Make]) -> list[str]:
    """Makes them, all at once; takes a quarter of a minute. Safe beside other processes that do the same.

    An archive has its name only once it is whole.

    Returns:
        Why those were not made that were not. They are only missing: JVMs begin without them.
    """
    with ThreadPoolExecutor(max(1, len(makes)), thread_name_prefix="make-classes") as pool:
        reasons = [reason for reason in pool.map(_make, makes, makes.values()) if reason]
    for directory in {path.parent for path in makes}:
        _remove_unused(directory)
    return reasons


def _make(path: Path, make: Make) -> str:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_directory(path.parent, "making-") as directory:
            made = directory / path.name
            make(made)
            # A Java that makes none, as one without an archive of its own, won't do it the next time either.
            made.touch()
            made.replace(path)
    except (OSError, KeyholeError) as error:
        return f"{path.name}: {error}"
    return ""


def _run_kafka(java: Java, jars: Sequence[Path], archive: Path) -> None:
    kafka = LocalKafka(archive.parent / "kafka", jars, java, options=writing(archive))
    try:
        kafka.start()
        make_topics(kafka.bootstrap_servers, {"training": 1}, _KAFKA_SECONDS)
        KafkaAdmin(kafka.bootstrap_servers, "training").fence("training", _KAFKA_SECONDS)
    finally:
        # It writes the archive before it has ended.
        kafka.stop(_SECONDS)


def _run_spark(java: Java, environ: Mapping[str, str], archive: Path) -> None:
    directory = archive.parent / "spark"
    directory.mkdir()
    command = [sys.executable, "-P", "-m", "keyhole.spark.training", str(archive), str(directory)]
    run_whole(command, {**environ, "JAVA_HOME": str(java.home), "TMPDIR": str(directory)}, directory / "log", _SECONDS)


def run_whole(command: Sequence[str], environ: Mapping[str, str], log: Path, seconds: float) -> None:
    """Runs Spark's training; when it returns, or raises, nothing of it runs any more, the JVM that it starts included.

    Args:
        environ: All of its environment.
        log: What it prints.
        seconds: After which it is killed.

    Raises:
        MachineError: It failed, or was killed; with the end of what it printed.
    """
    child = Child("Spark", command, log, environ)
    try:
        code = child.wait(seconds)
    finally:
        child.kill()
    if code != 0:
        ended = f"was killed after {seconds:g} s" if code is None else f"ended with exit code {code}"
        raise MachineError(f"Spark {ended}:\n{last_words(child.output())}")


def _remove_unused(directory: Path) -> None:
    """What can't be removed is no trouble of whoever has made one."""
    by_name: dict[str, list[tuple[float, Path]]] = {}
    for path in directory.glob("*.jsa"):
        with contextlib.suppress(OSError):
            by_name.setdefault(path.name.partition("-")[0], []).append((path.stat().st_mtime, path))
    for archives in by_name.values():
        for _, path in sorted(archives, reverse=True)[_KEPT:]:
            with contextlib.suppress(OSError):
                path.unlink()
