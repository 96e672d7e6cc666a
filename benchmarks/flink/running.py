"""Flink's queryable state on this machine: built by Maven; its server and its clients are processes of their own, which
listen and speak on loopback only."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyhole.errors import MachineError
from keyhole.local.java import find_java
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child

BACKENDS = ("hashmap", "rocksdb")

_FOLDER = Path(__file__).parent
_JAR = Path("target", "flink-benchmark.jar")
_LIBRARIES = Path("target", "lib", "*")
# Of java.base: what Flink's own start scripts open on Java 17, and what RocksDB and its serializers reach into.
_OPENED = (
    *("java.io", "java.lang", "java.lang.reflect", "java.net", "java.nio", "java.text", "java.time", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks", "sun.nio.ch"),
)
_SERVER_HEAP, _CLIENT_HEAP = "4g", "1g"
_START_SECONDS = 300
# Unrecorded lookups at 64 outstanding before a client's first level: both JVMs compile.
_COMPILE_SECONDS = 12
_WARM_SECONDS = 10
_SAMPLES = 200
# Beyond the time that a client is told to take.
_SPARE_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Of Flink.

    Attributes:
        threads: Of the proxy's and the server's network and queries, each. Flink's own choice for one slot is 1, too.
        buffer_timeout_ms: When a source's events are sent on at the latest; 100 is Flink's default.
        bootstrap_servers, topic: Of Kafka: where the job's readings come from. Empty: they are its own.
    """

    backend: str = "hashmap"
    threads: int = 1
    buffer_timeout_ms: int = 100
    bootstrap_servers: str = ""
    topic: str = ""


@dataclass(frozen=True)
class Flink:
    """A running server, and how to start clients of it."""

    java: Path
    proxy_port: int
    keys: int
    settings: Settings
    directory: Path
    pid: int

    def lookups(self, levels: Sequence[int], seconds: float) -> list[dict[str, Any]]:
        """Lookups in a closed loop, by a client that is started anew: per number of outstanding ones a measurement.

        Raises:
            MachineError: A lookup failed, or its value was another key's.
        """
        takes = _COMPILE_SECONDS + len(levels) * (_WARM_SECONDS + seconds)
        given = {
            "compileSeconds": _COMPILE_SECONDS,
            "warmSeconds": _WARM_SECONDS,
            "seconds": seconds,
            "keys": self.keys,
        }
        measured = self._client("Lookups", given, [str(level) for level in levels], takes)
        return [{"system": system(line.pop("flink"), self.settings), "path": "proxy", **line} for line in measured]

    def freshness(self) -> dict[str, Any]:
        """From an event of the source to the first answer that shows it, by a client that reads without a pause."""
        # An event comes every 0.1 to 0.15 s.
        takes = _WARM_SECONDS + _SAMPLES * 0.15
        (line,) = self._client("Freshness", {"warmSeconds": _WARM_SECONDS, "samples": _SAMPLES}, [], takes)
        name = system(line.pop("flink"), self.settings)
        return {"system": name, "buffer_timeout_ms": self.settings.buffer_timeout_ms, **line}

    def sightings(self, until: int, seconds: int, pause_ms: float) -> Child:
        """A client that says when it saw each reading of `fresh` first; it ends with that of this number.

        Args:
            seconds: After so many it ends all the same.
            pause_ms: Between an answer and the next lookup.
        """
        given = {
            "proxyPort": self.proxy_port,
            "java.io.tmpdir": self.directory,
            "until": until,
            "seconds": seconds,
        }
        given["pauseMicros"] = round(pause_ms * 1000)
        command = java_command(self.java, "Sightings", _CLIENT_HEAP, given)
        return Child("Flink's client", command, self.directory / "Sightings.log", os.environ)

    def _client(
        self, main: str, properties: Mapping[str, object], arguments: Sequence[str], seconds: float
    ) -> list[dict[str, Any]]:
        given = {"proxyPort": self.proxy_port, "java.io.tmpdir": self.directory, **properties}
        command = java_command(self.java, main, _CLIENT_HEAP, given, arguments)
        child = Child("Flink's client", command, self.directory / f"{main}.log", os.environ)
        try:
            code = child.wait(seconds + _SPARE_SECONDS)
        finally:
            child.kill()
        if code != 0:
            raise MachineError(f"Flink's client ended with exit code {code}: {child.output()}")
        return measurements(child.output())


@contextlib.contextmanager
def flink(keys: int, settings: Settings) -> Iterator[Flink]:
    """A server whose state has a value for each of `keys` keys. Gone with its files when the context ends.

    Args:
        keys: Where the readings come from Kafka: how many the topic has at least.

    Raises:
        MachineError: Java or Maven are missing, or it didn't start.
    """
    java = find_java(os.environ).executable
    build()
    proxy_port, server_port = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="keyhole-flink-") as folder:
        directory = Path(folder)
        given = {
            "keys": keys,
            "backend": settings.backend,
            "threads": settings.threads,
            "bufferTimeoutMs": settings.buffer_timeout_ms,
            "proxyPort": proxy_port,
            "serverPort": server_port,
            "bootstrapServers": settings.bootstrap_servers,
            "topic": settings.topic,
            "java.io.tmpdir": directory,
        }
        command = java_command(java, "Server", _SERVER_HEAP, given)
        child = Child("Flink's server", command, directory / "server.log", os.environ)
        try:
            child.wait_healthy(lambda: "loaded" in child.output().splitlines(), _START_SECONDS)
            yield Flink(java, proxy_port, keys, settings, directory, child.pid)
        finally:
            child.terminate()


def build(folder: Path = _FOLDER) -> None:
    """With Maven, where a source is newer than what was built. The first time it fetches Flink, about 100 MB.

    Raises:
        MachineError: There is no Maven, or it failed.
    """
    jar, sources = folder / _JAR, [folder / "pom.xml", *(folder / "src").rglob("*.java")]
    if jar.exists() and jar.stat().st_mtime >= max(source.stat().st_mtime for source in sources):
        return
    maven = shutil.which("mvn")
    if maven is None:
        raise MachineError(
            "there is no mvn on PATH; install Maven and a JDK (Debian, Ubuntu: apt-get install maven default-jdk; "
            "macOS: brew install maven)"
        )
    print("building Flink's benchmark with Maven", file=sys.stderr)
    # What it says is no figure.
    command = [maven, "-q", "-B", "clean", "package"]
    done = subprocess.run(command, cwd=folder, check=False, stdout=sys.stderr)
    if done.returncode != 0:
        raise MachineError(f"Maven could not build {folder}; it says why above")


def java_command(
    java: Path, main: str, heap: str, properties: Mapping[str, object], arguments: Sequence[str] = ()
) -> list[str]:
    """Of one of the benchmark's programs."""
    return [
        str(java),
        f"-Xmx{heap}",
        "-XX:+UseG1GC",
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
        "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        *(f"-D{name}={value}" for name, value in properties.items()),
        "-cp",
        os.pathsep.join([str(_FOLDER / _JAR), str(_FOLDER / _LIBRARIES)]),
        f"benchmark.{main}",
        *arguments,
    ]


def measurements(output: str) -> list[dict[str, Any]]:
    """The lines of JSON of what a client has written, which Flink's warnings stand between."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def system(version: str, settings: Settings) -> str:
    """Its name beside the figures: two that differ in a setting must not be taken for one."""
    threads = "" if settings.threads == 1 else f" {settings.threads} threads"
    return f"flink {version} {settings.backend}{threads}"
