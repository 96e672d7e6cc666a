"""The jar cache. Maven is a directory, or a port on which nobody listens."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from keyhole.errors import JarsUnavailable
from keyhole.local import jars as jars_module
from keyhole.local.jars import Jar, JarSet, default_cache_dir, fetch_jars, locked
from keyhole.local.lock_jars import in_pyspark, version_in_pyspark

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
