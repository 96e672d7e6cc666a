"""Finds the Java that Kafka and Spark run on, and says what is wrong with the one that is there."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from keyhole.errors import JavaMissing

MINIMUM_VERSION = 17
# Spark 4.2 does not start without it; some trimmed distributions leave it out.
REQUIRED_MODULE = "jdk.incubator.vector"

_TODO = f"install a JDK of version {MINIMUM_VERSION} or later and set JAVA_HOME to it, or put its java on PATH"
_TIMEOUT_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that will do. `version` is the feature version: 17, 21."""

    executable: Path
    version: int

    @property
    def home(self) -> Path:
        """What JAVA_HOME must be for Spark's scripts to use this Java."""
        return self.executable.resolve().parent.parent


def find_java(environ: Mapping[str, str]) -> Java:
    """The Java of JAVA_HOME, or where that is not set, of PATH: the one that Spark's own scripts would take.

    Runs it twice (about 0.2 s).

    Raises:
        JavaMissing: There is none, it is too old, or it lacks a module; the message says what was found and what to do.
    """
    executable = _executable(environ)
    said = _run(executable, "-XshowSettings:properties", "-version")
    version = _version(executable, said)
    if version < MINIMUM_VERSION:
        raise JavaMissing(
            f"{executable} is Java {version}; Kafka and Spark need {MINIMUM_VERSION} or later: {_TODO}",
            executable=executable,
            version=version,
        )
    if REQUIRED_MODULE not in _run(executable, "--list-modules"):
        raise JavaMissing(
            f"{executable} (Java {version}) lacks the module {REQUIRED_MODULE}, without which Spark does not start; "
            f"it is a trimmed runtime: {_TODO}",
            executable=executable,
            version=version,
        )
    return Java(_own(said) or executable, version)


def _executable(environ: Mapping[str, str]) -> Path:
    home = environ.get("JAVA_HOME")
    if home:
        executable = Path(home) / "bin" / "java"
        if not executable.is_file():
            raise JavaMissing(f"JAVA_HOME is {home}, but there is no {executable}: {_TODO}, or unset it", home=home)
        return executable
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        raise JavaMissing(f"no Java was found: JAVA_HOME is not set and PATH has no java; {_TODO}")
    return Path(found)


def _own(said: str) -> Path | None:
    """The executable in the home that Java itself names: a version manager has a script on PATH in its place."""
    match = re.search(r"^ *java\.home = (.+)$", said, re.MULTILINE)
    executable = Path(match[1], "bin", "java") if match is not None else None
    return executable if executable is not None and executable.is_file() else None


def _version(executable: Path, output: str) -> int:
    match = re.search(r'version "(\d+)(?:\.(\d+))?', output)
    if match is None:
        raise JavaMissing(
            f"{executable} does not look like Java; `java -version` said {output.strip()[:200]!r}: {_TODO}",
            executable=executable,
        )
    # Up to Java 8 the version was written 1.8.
    return int(match[2]) if match[1] == "1" and match[2] else int(match[1])


def _run(executable: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            [executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissing(f"{executable} can't be run: {error}; {_TODO}", executable=executable) from error
    return done.stdout
