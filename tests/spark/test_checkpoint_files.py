"""Files beside a checkpoint, here, through Hadoop and in an object store: the same; and either reads the other's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from keyhole.spark.driver.checkpoint_files import CheckpointFiles, HadoopFiles, LocalFiles, checkpoint_files
from keyhole.spark.driver.pins import BatchPins
from tests.support.object_store import ObjectStore, reaching

Make = Callable[[], CheckpointFiles]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "a b%20ü" / "broadcast"


@pytest.fixture
def local(spark: SparkSession, folder: Path) -> Make:
    def make() -> CheckpointFiles:
        files = checkpoint_files(spark, f"file:{folder}")
        assert isinstance(files, LocalFiles)
        return files

    return make


@pytest.fixture
def hadoop(spark: SparkSession, folder: Path) -> Make:
    jvm = spark._jvm
    assert jvm is not None
    return lambda: HadoopFiles(spark, jvm.org.apache.hadoop.fs.Path(f"file:{folder}"))


@pytest.fixture
def remote(spark: SparkSession, object_store: ObjectStore, folder: Path) -> Iterator[Make]:
    def make() -> CheckpointFiles:
        files = checkpoint_files(spark, object_store.at(f"checkpoint-files{folder}"))
        assert isinstance(files, HadoopFiles)
        return files

    with reaching(object_store, spark):
        yield make


@pytest.fixture(params=["local", "hadoop", "remote"])
def make(request: pytest.FixtureRequest) -> Make:
    return request.getfixturevalue(request.param)


def test_what_is_written_is_read_until_it_is_deleted(make: Make, folder: Path) -> None:
    files = make()
    assert (files.names(), files.has("7"), files.read("7")) == ([], False, None)
    assert files.create("7", b"")
    assert files.create("8", bytes(range(256)) * 1000)
    assert sorted(files.names()) == ["7", "8"]
    files.delete("7")
    files.delete("6")
    again = make()
    assert (again.names(), again.has("8"), again.read("8"), again.read("7")) == (
        ["8"],
        True,
        bytes(range(256)) * 1000,
        None,
    )


def test_what_is_there_stays_and_nothing_else_is_left(make: Make, folder: Path) -> None:
    files = make()
    assert files.create("1", b"first")
    before = sorted(folder.glob("*"))
    assert not files.create("1", b"second")
    assert (files.read("1"), files.names(), sorted(folder.glob("*"))) == (b"first", ["1"], before)


def test_in_an_object_store_what_another_has_made_since_it_was_looked_for_stays(
    remote: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two drivers that look at the same moment one has it: the store decides, by whether there is such a file."""
    woken, successor = remote(), remote()
    looked = woken.has

    def look_too_early(name: str) -> bool:
        monkeypatch.setattr(woken, "has", looked)
        assert not looked(name)
        assert successor.create(name, b"the successor's")
        return False

    monkeypatch.setattr(woken, "has", look_too_early)
    assert not woken.create("1", b"too late")
    assert (woken.read("1"), woken.names()) == (b"the successor's", ["1"])


def test_each_reads_what_the_other_has_written_and_leaves_it_there(local: Make, hadoop: Make, folder: Path) -> None:
    assert hadoop().create("1", b"through Hadoop")
    assert not local().create("1", b"on this machine")
    assert local().read("1") == b"through Hadoop"
    local().delete("1")
    assert local().create("1", b"on this machine")
    assert not hadoop().create("1", b"through Hadoop again")
    assert hadoop().read("1") == b"on this machine"
    hadoop().delete("1")
    assert hadoop().create("1", b"through Hadoop again")
    assert local().read("1") == b"through Hadoop again"
    local().delete("1")
    assert hadoop().read("1") is None
    assert list(folder.iterdir()) == []


def test_a_content_that_stays_is_written_once_and_read_by_the_other_too(
    local: Make, hadoop: Make, folder: Path
) -> None:
    content = bytes(range(256)) * 1000
    for number in range(6):
        pins = BatchPins((local, hadoop)[number % 2](), number, kept=2)
        pin = pins.share(content, str(number), pins.before())
        again = BatchPins((hadoop, local)[number % 2](), number, kept=2)
        assert again.now() is not None
        assert (again.content(pin), pin.note) == (content, str(number))
    assert {path.name: path.stat().st_size > 1000 for path in folder.glob("[0-9]*")} == {
        "0": True,
        "4": False,
        "5": False,
    }


def test_a_write_that_fails_leaves_nothing_and_may_be_tried_again(
    local: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = local()

    def full(part: Path, content: bytes) -> None:
        part.touch()
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="no space left"):
            files.create("1", b"first")
    assert list(folder.iterdir()) == []
    assert files.create("1", b"first")
    assert files.read("1") == b"first"
