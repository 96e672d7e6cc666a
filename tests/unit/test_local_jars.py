"""The jar cache. Maven is a directory, a port on which nobody listens, or a server here."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from keyhole.errors import JarsUnavailable
from keyhole.local import jars as jars_module
from keyhole.local.jars import Jar, JarSet, default_cache_dir, fetch_jars, locked
from keyhole.local.lock_jars import in_pyspark, version_in_pyspark
from tests.support.waiting import LONG_SECONDS, SOON_SECONDS

CONTENT = b"not really a jar"


@pytest.fixture
def local_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local Maven repository; the remote one can't be reached."""
    settings = tmp_path / "jgo.conf"
    settings.write_text("[repositories]\ncentral = http://127.0.0.1:1/maven\n")
    repository = tmp_path / "m2"
    monkeypatch.setenv("JGO_CONFIG_FILE", str(settings))
    monkeypatch.setenv("M2_REPO", str(repository))
    monkeypatch.setattr(jars_module, "_PAUSE_SECONDS", 0)
    return repository


def jar(name: str, content: bytes = CONTENT) -> Jar:
    return Jar(f"org.example:{name}:1.0", len(content), hashlib.sha256(content).hexdigest())


def install(repository: Path, item: Jar, content: bytes = CONTENT) -> None:
    path = repository / item.path
    path.parent.mkdir(parents=True)
    path.write_bytes(content)


def test_a_jar_stands_where_maven_would_put_it() -> None:
    assert jar("thing").path == Path("org/example/thing/1.0/thing-1.0.jar")


def test_what_the_local_maven_repository_has_is_taken_from_there_with_progress(
    tmp_path: Path, local_maven: Path
) -> None:
    wanted = [jar("one"), jar("two")]
    for item in wanted:
        install(local_maven, item)
    seen: list[tuple[int, int]] = []
    paths = fetch_jars(wanted, tmp_path / "cache", lambda *step: seen.append(step))
    assert paths == [tmp_path / "cache" / item.path for item in wanted]
    assert [path.read_bytes() for path in paths] == [CONTENT, CONTENT]
    size = len(CONTENT)
    assert (seen[0], seen[-1]) == ((0, 2 * size), (2 * size, 2 * size))
    assert seen == sorted(seen)


def test_what_is_in_the_cache_is_not_fetched_again_and_leaves_nothing_else_there(
    tmp_path: Path, local_maven: Path
) -> None:
    item, cache = jar("one"), tmp_path / "cache"
    install(local_maven, item)
    fetch_jars([item], cache)
    (local_maven / item.path).unlink()
    steps: list[object] = []
    assert fetch_jars([item], cache, lambda *step: steps.append(step)) == [cache / item.path]
    assert steps == []
    assert [path.name for path in cache.iterdir()] == ["org"]


def test_an_artifact_that_can_not_be_fetched_is_named_with_the_cache_and_what_to_do(
    tmp_path: Path, local_maven: Path
) -> None:
    with pytest.raises(JarsUnavailable, match=r"org\.example:gone:1\.0 can't be fetched") as caught:
        fetch_jars([jar("gone")], tmp_path / "cache")
    assert str(tmp_path / "cache") in caught.value.message
    assert "jgo's config file" in caught.value.message
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_jar_with_another_checksum_is_never_taken_from_the_local_repository(
    tmp_path: Path, local_maven: Path
) -> None:
    item = jar("one")
    install(local_maven, item, content=bytes(len(CONTENT)))
    with pytest.raises(JarsUnavailable):
        fetch_jars([item], tmp_path / "cache")


def test_a_cache_that_can_not_be_written_is_named(tmp_path: Path, local_maven: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JarsUnavailable, match="can't be written"):
        fetch_jars([jar("one")], tmp_path / "file" / "cache")


class Repository:
    """A remote Maven repository of one jar; close it.

    Attributes:
        checksum: What it answers for the jar's .sha1.
        send: Writes the jar to the connection.
    """

    def __init__(self, settings: Path, length: int) -> None:
        self.checksum = hashlib.sha1(CONTENT).hexdigest().encode()
        self.send: Callable[[Any], None] = lambda to: to.write(CONTENT)
        repository = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                checksum = self.path.endswith(".sha1")
                self.send_response(200)
                self.send_header("Content-Length", str(len(repository.checksum) if checksum else length))
                self.end_headers()
                if checksum:
                    self.wfile.write(repository.checksum)
                else:
                    repository.send(self.wfile)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        settings.write_text(f"[repositories]\ncentral = http://127.0.0.1:{self._server.server_port}/maven\n")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def remote(tmp_path: Path, local_maven: Path) -> Iterator[Callable[[int], Repository]]:
    """Makes the remote repository; its jar has so many bytes."""
    made: list[Repository] = []

    def make(length: int) -> Repository:
        made.append(Repository(tmp_path / "jgo.conf", length))
        return made[-1]

    yield make
    for repository in made:
        repository.close()


@pytest.mark.parametrize("checksum", [b"", b"<html>nothing here</html>"])
def test_an_odd_checksum_of_a_mirror_is_no_fault_of_the_jar(
    tmp_path: Path, remote: Callable[[int], Repository], checksum: bytes
) -> None:
    remote(len(CONTENT)).checksum = checksum
    (path,) = fetch_jars([jar("one")], tmp_path / "cache")
    assert path.read_bytes() == CONTENT


def test_another_jar_under_an_odd_checksum_is_refused(tmp_path: Path, remote: Callable[[int], Repository]) -> None:
    remote(len(CONTENT)).checksum = b""
    with pytest.raises(JarsUnavailable, match=r"org\.example:one:1\.0 can't be fetched"):
        fetch_jars([jar("one", b"not really a jut")], tmp_path / "cache")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_fetch_that_is_broken_off_does_not_wait_for_the_rest(
    tmp_path: Path, remote: Callable[[int], Repository]
) -> None:
    broken_off, over, in_vain = threading.Event(), threading.Event(), threading.Event()

    def send(to: Any) -> None:
        to.write(bytes(8192))
        broken_off.wait(LONG_SECONDS)
        to.write(bytes(8192))
        if not over.wait(SOON_SECONDS):
            in_vain.set()

    def show(done: int, total: int) -> None:
        if done:
            broken_off.set()
            raise KeyboardInterrupt

    remote(3 * 8192).send = send
    try:
        with pytest.raises(KeyboardInterrupt):
            fetch_jars([jar("one", bytes(3 * 8192))], tmp_path / "cache", show)
    finally:
        over.set()
    assert not in_vain.is_set()
    assert list((tmp_path / "cache").iterdir()) == []
    gc.collect()  # jgo closes no response that is broken off


def test_what_a_killed_process_has_fetched_in_part_goes_with_the_next_fetch(
    tmp_path: Path, remote: Callable[[int], Repository]
) -> None:
    began, cache = threading.Event(), tmp_path / "cache"

    def send(to: Any) -> None:
        to.write(CONTENT[:4])
        began.set()
        over.wait(LONG_SECONDS)

    over, repository, item = threading.Event(), remote(len(CONTENT)), jar("one")
    repository.send = send
    script = (
        "import sys; from pathlib import Path; from keyhole.local.jars import Jar, fetch_jars; "
        f"fetch_jars([Jar({item.coordinate!r}, {item.bytes}, {item.sha256!r})], Path(sys.argv[1]))"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(cache)], env=os.environ) as process:
        assert began.wait(LONG_SECONDS)
        process.kill()
    over.set()
    assert len(list(cache.glob("fetching-*"))) == 1
    repository.send = lambda to: to.write(CONTENT)
    fetch_jars([item], cache)
    assert [path.name for path in cache.iterdir()] == ["org"]


def test_the_lock_pins_each_artifact_once_and_to_one_version() -> None:
    for kind in JarSet:
        names = [item.coordinate.rsplit(":", 1)[0] for item in locked(kind)]
        assert len(names) == len(set(names))
    assert "org.apache.kafka:kafka_2.13:4.3.1" in {item.coordinate for item in locked(JarSet.KAFKA)}
    spark = {item.coordinate for item in locked(JarSet.SPARK_KAFKA)}
    assert "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0" in spark
    assert "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0" in spark


def test_what_reads_s3_is_of_the_hadoop_that_pyspark_has_and_brings_none_of_pysparks_jars_again() -> None:
    found = locked(JarSet.SPARK_S3)
    assert f"org.apache.hadoop:hadoop-aws:{version_in_pyspark('hadoop-client-api')}" in {of.coordinate for of in found}
    assert [of.coordinate for of in found if in_pyspark(of.coordinate)] == []
    # All of Amazon's SDK in one jar is fifty times as large.
    assert sum(of.bytes for of in found) < 20_000_000
    # The SDK refuses to choose between two HTTP clients.
    assert [of for of in found if ":url-connection-client:" in of.coordinate] == []


def test_the_cache_is_where_the_platform_wants_caches(tmp_path: Path) -> None:
    assert default_cache_dir({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "keyhole" / "jars"
    assert default_cache_dir({}) == Path.home() / ".cache" / "keyhole" / "jars"
