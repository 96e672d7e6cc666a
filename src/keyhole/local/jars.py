"""The JVM jars of the embedded default: which (jars.json), from where (Maven, through jgo), and a cache.

Nothing is resolved at run time: jars.json lists every artifact with its checksum; `python -m keyhole.local.lock_jars`
makes it anew. Where artifacts come from is the machine's choice: jgo's own settings are respected (its config file's
`[repositories]`, JGO_CONFIG_FILE, M2_REPO), and what a local Maven repository already has is not fetched again.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from importlib import resources
from pathlib import Path

import msgspec
import requests
from jgo.config import GlobalSettings
from jgo.maven import MavenContext, PythonResolver

from keyhole.caches import cache_dir
from keyhole.errors import JarsUnavailable
from keyhole.hints import ready
from keyhole.temporary import temporary_directory

Progress = Callable[[int, int], None]
"""(bytes done, bytes in all): at the beginning, a few times a second, and at the end. On the caller's thread."""

_PARALLEL = 8
_ATTEMPTS = 3
_PAUSE_SECONDS = 0.5
_REQUEST_TIMEOUT_SECONDS = 30
_TELL_SECONDS = 0.2


class JarSet(enum.StrEnum):
    """What a set of jars is for."""

    KAFKA = "kafka"
    SPARK_KAFKA = "spark-kafka"
    SPARK_S3 = "spark-s3"
    """For checkpoints, and whatever else Spark reads and writes, at s3a://."""


@ready
class Jar(msgspec.Struct, frozen=True):
    """One artifact. `coordinate` is group:artifact:version."""

    coordinate: str
    bytes: int
    sha256: str

    @property
    def path(self) -> Path:
        """Where it stands in a Maven repository, and in our cache."""
        group, artifact, version = self.coordinate.split(":")
        return Path(*group.split("."), artifact, version, f"{artifact}-{version}.jar")


def locked(kind: JarSet) -> list[Jar]:
    """The pinned artifacts of a set."""
    text = resources.files("keyhole.local").joinpath("jars.json").read_bytes()
    return msgspec.json.decode(text, type=dict[JarSet, list[Jar]])[kind]


def default_cache_dir(environ: Mapping[str, str]) -> Path:
    """Where jars are kept: $XDG_CACHE_HOME/keyhole/jars, or ~/.cache/keyhole/jars."""
    return cache_dir(environ, "jars")


def maven(repo_cache: Path, resolver: PythonResolver | None = None) -> MavenContext:
    """Access to the machine's Maven repositories; what it fetches goes to `repo_cache`.

    Args:
        resolver: How it is fetched; None: as jgo does it.
    """
    context = MavenContext(resolver, repo_cache=repo_cache, timeout=_REQUEST_TIMEOUT_SECONDS)
    context.remote_repos.update(GlobalSettings.load().repositories)
    return context


def fetch(kind: JarSet, cache_dir: Path, progress: Progress | None = None) -> list[Path]:
    """The jars of a set, fetched in parallel where the cache lacks them. Blocks; safe beside other processes.

    A jar appears in the cache under its name only when it is whole and its checksum is right.

    Raises:
        JarsUnavailable: One can't be fetched, or what came is not what was locked; the message names it.
    """
    return fetch_jars(locked(kind), cache_dir, progress)


def fetch_jars(jars: Sequence[Jar], cache_dir: Path, progress: Progress | None = None) -> list[Path]:
    """Fetches the jars of a list of one's own, as `fetch` does."""
    missing = [jar for jar in jars if not is_cached(jar, cache_dir)]
    if missing:
        try:
            cache_dir.mkdir(parents=True, exist_ok=True)
            with temporary_directory(cache_dir, "fetching-") as staging:
                _JarFetch(cache_dir, staging, sum(jar.bytes for jar in missing), progress).all(missing)
        except OSError as error:
            raise JarsUnavailable(f"the jar cache {cache_dir} can't be written: {error}", cache=cache_dir) from error
    return [cache_dir / jar.path for jar in jars]


def is_cached(jar: Jar, cache_dir: Path) -> bool:
    """Whether the cache has it, whole."""
    # The checksum was verified before the file got its name.
    path = cache_dir / jar.path
    return path.is_file() and path.stat().st_size == jar.bytes


class _JarFetch:
    def __init__(self, cache_dir: Path, staging: Path, total_bytes: int, progress: Progress | None) -> None:
        self._cache_dir = cache_dir
        self._maven = maven(staging, PythonResolver(progress_callback=self._while_wanted))
        self._local_maven = GlobalSettings.load().repo_cache
        self._total_bytes = total_bytes
        self._progress = progress
        self._told_bytes = 0
        self._broken_off = threading.Event()

    def all(self, jars: list[Jar]) -> None:
        self._tell(jars)
        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="fetch-jar") as pool:
            futures = [pool.submit(self._one, jar) for jar in jars]
            try:
                under_way = set(futures)
                while under_way:
                    done, under_way = wait(under_way, _TELL_SECONDS, FIRST_EXCEPTION)
                    for future in done:
                        future.result()
                    self._tell(jars)
            finally:
                # After the first failure, or a Ctrl-C, the rest need not be tried, and what is coming in is let go.
                self._broken_off.set()
                for future in futures:
                    future.cancel()

    @contextlib.contextmanager
    def _while_wanted(self, *_: object) -> Iterator[Callable[[int], None]]:
        """For jgo, which calls what it is given with each piece that has come in."""

        def go_on(_: int) -> None:
            if self._broken_off.is_set():
                raise RuntimeError("broken off")

        yield go_on

    def _tell(self, jars: list[Jar]) -> None:
        """Counts what is there, of large jars a part: a bar that moves jar by jar would stand still for minutes."""
        if self._progress is not None:
            staged = self._maven.repo_cache
            there = sum(_size(self._cache_dir / jar.path) or _size(staged / jar.path) for jar in jars)
            # One may be between the two places, or begin again.
            self._told_bytes = max(self._told_bytes, there)
            self._progress(self._told_bytes, self._total_bytes)

    def _one(self, jar: Jar) -> None:
        staged = self._copied(jar) or self._downloaded(jar)
        target = self._cache_dir / jar.path
        target.parent.mkdir(parents=True, exist_ok=True)
        staged.replace(target)

    def _copied(self, jar: Jar) -> Path | None:
        """A copy of what the local Maven repository has, if that is the right one."""
        present = self._local_maven / jar.path
        if not present.is_file() or present.stat().st_size != jar.bytes:
            return None
        staged: Path = self._maven.repo_cache / jar.path
        staged.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(present, staged)
        return staged if sha256(staged) == jar.sha256 else None

    def _downloaded(self, jar: Jar) -> Path:
        staged: Path = self._maven.repo_cache / jar.path
        cause: Exception | None = None
        for attempt in range(_ATTEMPTS):
            if self._broken_off.wait(_PAUSE_SECONDS * attempt):
                break
            staged.unlink(missing_ok=True)
            try:
                self._maven.resolver.download(self._maven.create_dependency(jar.coordinate).artifact)
                cause = None
            except (requests.RequestException, RuntimeError, LookupError, ValueError) as error:
                cause = error
            # Also after an error: it may be of the checksum beside the jar, which is not the one that counts.
            if staged.is_file() and sha256(staged) == jar.sha256:
                return staged
        what = f"can't be fetched ({cause})" if cause else "came with another checksum than the locked one"
        raise JarsUnavailable(
            f"{jar.coordinate} {what}. It belongs in {self._cache_dir / jar.path}: connect this machine to a Maven "
            "repository (another one than the default is set under [repositories] in jgo's config file), or copy the "
            "cache directory from a machine that has it",
            artifact=jar.coordinate,
            cache=self._cache_dir,
        ) from cause


def _size(path: Path) -> int:
    """0 where there is none."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def sha256(path: Path) -> str:
    """The checksum that jars.json holds, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
