"""Makes the archives of classes that Kafka and Spark on this machine begin with (keyhole.class_archive): once for each
Java and each set of jars, by running both for a moment.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from keyhole.class_archive import in_use
from keyhole.errors import KeyholeError, MachineError
from keyhole.local.java import Java
from keyhole.local.kafka import archive_of_kafka
from keyhole.local.processes import Child, last_words
from keyhole.spark.session import archive_of_spark
from keyhole.temporary import temporary_directory

_SECONDS = 300
_LOOK_SECONDS = 0.1
# Of each kind. One is left behind by each Spark that is installed somewhere else, as in a new clone.
_KEPT = 8

Make = Callable[[Path, threading.Event], None]
"""Runs the JVM so that it writes the archive to this path, or until the event says that nobody waits for it."""


def missing(
    java: Java, kafka_jars: Sequence[Path], environ: Mapping[str, str], *, spark: bool = True
) -> dict[Path, Make]:
    """The archives that are still to be made, and how. `spark`: also Spark's, beside Kafka's.

    Those that are there count as used: whoever asks will begin with them, and others that make new ones remove none.
    """
    makes: dict[Path, Make] = {
        archive_of_kafka(environ, java.executable, kafka_jars): functools.partial(
            _run_kafka, java, kafka_jars, environ
        ),
    }
    of_spark = archive_of_spark({**environ, "JAVA_HOME": str(java.home)}) if spark else None
    if of_spark is not None:
        makes[of_spark] = functools.partial(_run_spark, java, environ)
    return {path: make for path, make in makes.items() if not in_use(path)}


def make_archives(makes: Mapping[Path, Make]) -> list[str]:
    """Makes them, all at once; takes a quarter of a minute. Safe beside other processes that do the same.

    An archive has its name only once it is whole. After a Ctrl-C nothing of what makes them runs any more.

    Returns:
        Why those were not made that were not. They are only missing: JVMs begin without them.
    """
    broken_off = threading.Event()
    with ThreadPoolExecutor(max(1, len(makes)), thread_name_prefix="make-classes") as pool:
        try:
            made = pool.map(functools.partial(_make, broken_off), makes, makes.values())
            reasons = [reason for reason in made if reason]
        finally:
            broken_off.set()
    for directory in {path.parent for path in makes}:
        _remove_unused(directory)
    return reasons


def _make(broken_off: threading.Event, path: Path, make: Make) -> str:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_directory(path.parent, "making-") as directory:
            made = directory / path.name
            make(made, broken_off)
            # A Java that makes none, as one without an archive of its own, won't do it the next time either.
            made.touch()
            made.replace(path)
    except (OSError, KeyholeError) as error:
        return f"{path.name}: {error}"
    return ""


def _run_kafka(
    java: Java, jars: Sequence[Path], environ: Mapping[str, str], archive: Path, broken_off: threading.Event
) -> None:
    command = [sys.executable, "-P", "-m", "keyhole.local.kafka_training", *map(str, (archive, java.executable, *jars))]
    run_whole("Kafka", command, environ, archive.parent / "log", _SECONDS, broken_off)


def _run_spark(java: Java, environ: Mapping[str, str], archive: Path, broken_off: threading.Event) -> None:
    directory = archive.parent / "spark"
    directory.mkdir()
    command = [sys.executable, "-P", "-m", "keyhole.spark.training", str(archive), str(directory)]
    environ = {**environ, "JAVA_HOME": str(java.home), "TMPDIR": str(directory)}
    run_whole("Spark", command, environ, directory / "log", _SECONDS, broken_off)


def run_whole(
    name: str,
    command: Sequence[str],
    environ: Mapping[str, str],
    log: Path,
    seconds: float,
    broken_off: threading.Event,
) -> None:
    """Runs a training. When it returns, or raises, it runs no more, and what it has started is gone or being killed.

    Args:
        name: Whose it is, for the message.
        environ: All of its environment.
        log: What it prints.
        seconds: After which it is killed.
        broken_off: It is also killed once this is set.

    Raises:
        MachineError: It failed, or was killed; with the end of what it printed.
    """
    child, until = Child(name, command, log, environ), time.monotonic() + seconds
    try:
        while (code := child.exit_code) is None and time.monotonic() < until and not broken_off.wait(_LOOK_SECONDS):
            pass
    finally:
        child.kill()
    if code != 0:
        ended = f"was killed after {seconds:g} s" if code is None else f"ended with exit code {code}"
        raise MachineError(f"{name} {ended}:\n{last_words(child.output())}")


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
