"""Archives of loaded classes, by which a JVM comes up in about half of the processor time: Java's class data sharing.

Most of what Spark's and Kafka's first seconds take is reading, checking and linking classes. A JVM writes those that it
has loaded to a file when it ends, and a later one of the same Java and class path maps that file. Java checks by itself
whether the file fits, and does without it where it doesn't: an archive is never wrong, only missing.
`keyhole.local.class_archives` makes them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from keyhole.caches import cache_dir

# What does not fit is no fault that anybody has to hear of: the JVM is only slower.
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def archive_path(environ: Mapping[str, str], name: str, java: Path, jars: Iterable[Path]) -> Path:
    """Where the archive of the JVMs called `name` is, or would be, for this Java and these jars.

    Each Java and each set of jars has one of its own: what Java compares (path, size, time) is in the file's name.
    """
    digest = hashlib.blake2b(digest_size=8)
    for file in (java.resolve(), *sorted(jars)):
        found = file.stat()
        digest.update(f"{file}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return cache_dir(environ, "classes") / f"{name}-{digest.hexdigest()}.jsa"


def in_use(archive: Path) -> bool:
    """Whether there is one; if so it counts as used now: those that nobody uses are removed."""
    try:
        os.utime(archive)
    except OSError:
        return False
    return True


def reading(archive: Path) -> list[str]:
    """The JVM's options by which it takes its classes from the archive; none where there is none.

    An empty file says that this Java makes none.
    """
    try:
        if not in_use(archive) or not archive.stat().st_size:
            return []
    except OSError:  # removed meanwhile
        return []
    return [f"-XX:SharedArchiveFile={archive}", *_QUIET]


def writing(archive: Path) -> list[str]:
    """The JVM's options by which it writes the archive at an orderly end."""
    return [f"-XX:ArchiveClassesAtExit={archive}", *_QUIET]
