"""Blobs' files in a folder whose disk is full, and in an object store, which says no, isn't there, or is broken off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from jobs.vital_signs.archive import Archive
from jobs.vital_signs.blobs import Blob, stored_chunks, write_blob
from jobs.vital_signs.chunks import SECOND_US, Chunk
from jobs.vital_signs.files import Bucket, Files, Folder, files_at
from keyhole.errors import InvalidConfiguration
from keyhole.local.ports import free_ports
from tests.support.disks import small_disk
from tests.support.object_store import ObjectStore
from tests.support.vital_signs import BEGIN_US, BLOB_US, KEY, chunk
from tests.support.waiting import LONG_SECONDS

LARGE = 25_000_000
"""Bytes that no object store is sent at once."""


@pytest.fixture(params=["folder", "s3", "s3a"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where files can be, and none is."""
    if request.param == "folder":
        return str(tmp_path / "files")
    request.getfixturevalue("credentials")
    store: ObjectStore = request.getfixturevalue("object_store")
    return f"{request.param}:{store.at(tmp_path.name).partition(':')[2]}"


def blob(*seconds: int) -> Blob:
    return Blob(*KEY, BEGIN_US, BEGIN_US + BLOB_US, tuple(chunk(second) for second in seconds))


def test_a_blob_is_written_whole_and_again_and_what_is_in_it_stays(place: str) -> None:
    files = files_at(place)
    name = write_blob(files, blob(0, 1, 5))
    written = files.read(name)
    assert write_blob(files_at(place), blob(0, 1, 5)) == name
    assert files.read(name) == written
    write_blob(files, blob(5, 6))
    assert list(stored_chunks(files, *KEY, BEGIN_US, BEGIN_US + 1)) == [chunk(second) for second in (0, 1, 5, 6)]
    folder, _, file = name.rpartition("/")
    assert (folder, files.names(folder)) == ("patient-1/pleth/60s", [file])


def test_an_archive_has_what_is_in_files_of_every_length_and_what_is_in_none(place: str) -> None:
    assert len(Archive(place, lambda *_: []).read(KEY[0], BEGIN_US, BEGIN_US + BLOB_US).times_us) == 0
    write_blob(files_at(place), blob(10, 19))
    write_blob(files_at(f"{place}/"), Blob(*KEY, BEGIN_US, BEGIN_US + 20 * SECOND_US, (chunk(15), chunk(19))))
    files_at(place).write("/".join((*KEY, "notes", "1.txt")), b"of somebody else")
    times, _ = Archive(place, lambda *_: [chunk(25)]).read(KEY[0], BEGIN_US, BEGIN_US + BLOB_US)
    assert [(time - BEGIN_US) / SECOND_US for time in times[::4]] == [10, 15, 19, 25]


def test_what_is_not_there_is_none_and_has_no_names(place: str) -> None:
    files = files_at(place)
    files.check_there()
    assert files.read("patient-1/pleth/60s/0.parquet") is None
    assert files.names("patient-1/pleth") == []
    files.write("a/b/c", b"")
    files.write("a/d", b"x" * LARGE)
    assert (files.read("a/b/c"), files.read("a/d")) == (b"", b"x" * LARGE)
    assert (files.names("a"), files.names("a/b")) == (["b", "d"], ["c"])


def test_a_file_that_is_replaced_by_a_longer_one_while_it_is_read_is_read_whole(place: str) -> None:
    """Of an object store's the size is asked for first."""
    files = files_at(place)
    name = write_blob(files, blob(0))
    short = files.read(name)
    assert short is not None
    write_blob(files, blob(1))

    class Replaced:
        reads = 0

        def names(self, folder: str) -> list[str]:
            return files.names(folder)

        def read(self, name: str) -> bytes | None:
            data = files.read(name)
            self.reads += data is not None
            return data[: len(short)] if data and self.reads == 1 else data

    replaced: Files = Replaced()  # type: ignore[assignment]  # what a reader needs
    assert list(stored_chunks(replaced, *KEY, BEGIN_US, BEGIN_US + 1)) == [chunk(0), chunk(1)]


@pytest.mark.parametrize(
    "url",
    ["gs://bucket/path", "hdfs://host/path", "s3://", "s3:///path", "s3://key:word@bucket/path", "s3a://bucket?x=y"],
)
def test_a_url_where_no_files_can_be_is_refused_and_not_repeated_with_what_may_be_secret(url: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"can be in a folder .*, or in an object store") as refused:
        files_at(url)
    assert "word" not in refused.value.message


# A disk that says no, or forgets


def test_a_disk_that_is_full_in_the_middle_of_a_file_has_what_it_had_and_says_so_without_a_patients_name(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        files = files_at(disk / "files")
        name = write_blob(files, blob(0))
        before = sorted(path for path in disk.rglob("*") if path.is_file())
        closed = Blob(*KEY, BEGIN_US, BEGIN_US + BLOB_US, tuple(noise(second) for second in range(60)))
        for then in (closed, closed._replace(patient="patient-2")):
            with pytest.raises(InvalidConfiguration, match="can't be written") as full:
                write_blob(files, then)
            assert str(disk / "files") in full.value.message
            assert "No space left on device" in full.value.message
            assert "patient" not in full.value.message
        assert sorted(path for path in disk.rglob("*") if path.is_file()) == before
        assert list(stored_chunks(files, *KEY, BEGIN_US, BEGIN_US + 1)) == [chunk(0)]
        assert files.read(name.replace(KEY[0], "patient-2")) is None


def noise(second: int) -> Chunk:
    """That no encoding makes small."""
    return Chunk(BEGIN_US + second * SECOND_US, os.urandom(30_000))


def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_epoch_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else a machine that loses its power has half a file, or none, of chunks that are in the list no more."""
    done: list[tuple[str, str]] = []
    synced, renamed = os.fsync, Path.replace

    def fsync(of: int) -> None:
        done.append(("synced", str(Path(f"/proc/self/fd/{of}").readlink().relative_to(tmp_path))))
        synced(of)

    def replace(path: Path, target: Path) -> Path:
        done.append(("renamed", str(path.relative_to(tmp_path))))
        return renamed(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    files_at(tmp_path / "files").write("a/b/c", b"x")
    (_, part), *others = done
    assert part.startswith("files/a/b/.")
    assert others == [("renamed", part), *(("synced", folder) for folder in ("files/a/b", "files/a", "files", "."))]


def test_a_file_that_is_damaged_is_told_by_its_name_and_not_its_patients(place: str) -> None:
    files = files_at(place)
    name = write_blob(files, blob(0))
    whole = files.read(name)
    assert whole is not None
    for damaged in (b"", whole[:-1], whole[: len(whole) // 2], whole[:-40] + bytes(36) + b"PAR1"):
        files.write(name, damaged)
        for use in (
            lambda: list(stored_chunks(files, *KEY, BEGIN_US, BEGIN_US + 1)),
            lambda: write_blob(files, blob(0)),
        ):
            with pytest.raises(InvalidConfiguration, match=f"60s/{BEGIN_US}.parquet of a signal is damaged") as raised:
                use()
            assert "patient" not in raised.value.message
        assert files.read(name) == damaged


# An object store that says no, or nothing

Use = Callable[[Files], object]
USES: list[Use] = [
    lambda files: files.check_there(),
    lambda files: files.read("patient-1/a"),
    lambda files: files.write("patient-1/a", b"x"),
    lambda files: files.write("patient-1/a", b"x" * LARGE),
    lambda files: files.names("patient-1"),
]


def refused(files: Files, uses: list[Use]) -> list[str]:
    """What is said of each."""
    found = []
    for use in uses:
        with pytest.raises(InvalidConfiguration, match="endpoint, region and credentials") as error:
            use(files)
        found.append(error.value.message)
    assert not any("patient" in message for message in found), found
    return found


@pytest.mark.usefixtures("credentials")
def test_a_bucket_that_is_not_there_is_told_by_whoever_looks_for_it_and_by_whoever_writes(
    object_store: ObjectStore,
) -> None:
    files = files_at("s3://nowhere/files")
    for message in refused(files, [USES[0], USES[2], USES[3], lambda _: Archive("s3://nowhere/files", lambda *_: [])]):
        assert message.startswith("s3://nowhere/files can't be ")
        assert "NO_SUCH_BUCKET" in message


def test_a_store_that_nobody_answers_for_is_told_with_the_url() -> None:
    (port,) = free_ports(1)
    environ = {"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}", "AWS_ENDPOINT_URL": "http://x.invalid"}
    for message in refused(files_at("s3a://signals/files", environ), [USES[0], USES[2]]):
        assert message.startswith("s3://signals/files can't be ")
        assert "Could not connect" in message


def test_a_url_that_went_through_a_path_is_refused_and_makes_no_folder_of_that_name() -> None:
    for place in (Path("s3://signals/files"), "s3:/signals/files", Path("s3a://signals")):
        with pytest.raises(InvalidConfiguration, match="as a string"):
            files_at(place)
    assert isinstance(files_at("a:b/files"), Folder)


def test_half_of_the_credentials_are_told() -> None:
    with pytest.raises(InvalidConfiguration, match="`secret_key` is not set"):
        files_at("s3://signals/files", {"AWS_ACCESS_KEY_ID": "half"})


def test_a_job_whose_files_can_be_nowhere_ends_before_spark_starts_with_one_sentence(object_store: ObjectStore) -> None:
    settings = {
        "KEYHOLE_JOB_SERVERS": "127.0.0.1:1",
        "KEYHOLE_JOB_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "KEYHOLE_VITAL_SIGNS_TOPIC": "chunks",
        "KEYHOLE_VITAL_SIGNS_CHECKPOINT": "checkpoint",
        "KEYHOLE_VITAL_SIGNS_DIRECTORY": "spark",
        "KEYHOLE_VITAL_SIGNS_FILES": "s3a://nowhere/files",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "jobs.vital_signs"],
        env={**os.environ, **object_store.environ, **settings},
        capture_output=True,
        text=True,
        timeout=LONG_SECONDS,
        check=False,
    )
    assert ended.returncode == 1
    (said,) = ended.stderr.splitlines()
    assert said.startswith("vital-signs: s3://nowhere/files can't be reached (AWS Error NO_SUCH_BUCKET)")


class Between(ThreadingHTTPServer):
    """Passes an object store's requests on, but for those that `answer` answers itself, with a status and a code."""

    def __init__(self, store: ObjectStore, answer: Callable[[str, str], tuple[int, str] | None]) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.store, self.answer = store, answer

    @property
    def environ(self) -> dict[str, str]:
        return {**self.store.environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server_port}"}


class _Passing(BaseHTTPRequestHandler):
    server: Between
    protocol_version = "HTTP/1.1"

    def _pass(self) -> None:
        sent = self._sent()
        answered = self.server.answer(self.command, self.path)
        if answered is not None:
            status, code = answered
            said = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
            headers = {"Content-Type": "application/xml", "Content-Length": str(len(said))}
        else:
            onward = HTTPConnection(urlsplit(self.server.store.endpoint).netloc)
            names = {
                name: of for name, of in self.headers.items() if name.lower() not in ("transfer-encoding", "expect")
            }
            onward.request(self.command, self.path, sent, names)
            response = onward.getresponse()
            status, said, headers = response.status, response.read(), dict(response.getheaders())
            onward.close()
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(said)

    def _sent(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        sent = b""
        while size := int(self.rfile.readline(), 16):
            sent += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return sent

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _pass  # noqa: N815  # as its server calls them

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as its server calls it
        """Nothing."""


@contextmanager
def between(store: ObjectStore, answer: Callable[[str, str], tuple[int, str] | None]) -> Iterator[Between]:
    with Between(store, answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_a_caller_whom_the_store_refuses_is_told(object_store: ObjectStore) -> None:
    """As where there are no credentials: then requests come without."""
    with between(object_store, lambda *_: (403, "AccessDenied")) as server:
        files = files_at(object_store.at("refused"), server.environ)
        assert all("ACCESS_DENIED" in message for message in refused(files, USES))


def test_who_may_not_ask_for_the_bucket_may_still_have_files_in_it(object_store: ObjectStore) -> None:
    def answer(command: str, path: str) -> tuple[int, str] | None:
        return (403, "AccessDenied") if (command, path.strip("/").count("/")) == ("HEAD", 0) else None

    with between(object_store, answer) as server:
        files_at(object_store.at("a-part"), server.environ).check_there()


def test_an_upload_of_which_a_part_is_refused_leaves_what_was_there(object_store: ObjectStore) -> None:
    def answer(command: str, path: str) -> tuple[int, str] | None:
        return (403, "AccessDenied") if command == "PUT" and "partNumber=2" in path else None

    files: Files = Bucket(object_store.at("parts").replace("s3a", "s3"), object_store.environ)
    with between(object_store, answer) as server:
        broken = files_at(object_store.at("parts"), server.environ)
        refused(broken, [lambda files: files.write("new", b"x" * LARGE)])
        files.write("old", b"old")
        refused(broken, [lambda files: files.write("old", b"x" * LARGE)])
    assert (files.read("new"), files.read("old")) == (None, b"old")


@pytest.mark.parametrize("size", [1_000, LARGE], ids=["small", "large"])
def test_an_upload_whose_end_fails_leaves_what_was_there(object_store: ObjectStore, size: int) -> None:
    """The store takes all of the bytes, and then says no to the request that makes an object of them."""

    def answer(command: str, path: str) -> tuple[int, str] | None:
        ending = (command == "POST" and "uploadId" in path) or (command == "PUT" and "?" not in path)
        return (403, "AccessDenied") if ending else None

    files: Files = Bucket(object_store.at("ends").replace("s3a", "s3"), object_store.environ)
    with between(object_store, answer) as server:
        broken = files_at(object_store.at("ends"), server.environ)
        refused(broken, [lambda files: files.write("new", b"x" * size)])
        files.write("old", b"old")
        refused(broken, [lambda files: files.write("old", b"x" * size)])
    assert (files.read("new"), files.read("old")) == (None, b"old")


@pytest.mark.parametrize("size", [1_000, LARGE], ids=["small", "large"])
def test_a_task_that_is_killed_before_its_upload_ends_leaves_no_file_and_the_next_one_writes_it(
    object_store: ObjectStore, size: int
) -> None:
    """The last request of the upload is the one that makes the object."""
    came, killed = threading.Event(), threading.Event()

    def answer(command: str, path: str) -> tuple[int, str] | None:
        if (command == "POST" and "uploadId" in path) or (command == "PUT" and "?" not in path):
            came.set()
            assert killed.wait(LONG_SECONDS)
            return 500, "InternalError"  # nobody hears it
        return None

    place, name = object_store.at("killed-files"), f"of-{size}"
    code = f"from jobs.vital_signs.files import files_at; files_at({place!r}).write({name!r}, b'x' * {size})"
    with between(object_store, answer) as server:
        child = subprocess.Popen([sys.executable, "-c", code], env=server.environ | {"PYTHONPATH": "src:."})
        try:
            assert came.wait(LONG_SECONDS)
        finally:
            child.kill()
            assert child.wait(LONG_SECONDS) == -signal.SIGKILL
            killed.set()
    files = files_at(place, object_store.environ)
    assert files.read(name) is None
    files.write(name, b"x" * size)
    assert files.read(name) == b"x" * size
