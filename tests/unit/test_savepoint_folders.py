"""Folders in an object store, which has no folders: of Hadoop's, an empty object with a slash at its end is left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from s3fs import S3FileSystem

from keyhole.errors import InvalidConfiguration
from keyhole.local.ports import free_ports
from keyhole.savepoint.folder import Folder, copy_file
from tests.support.object_store import ObjectStore

pytestmark = pytest.mark.usefixtures("credentials")


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """fsspec keeps what it has made, whatever the environment says since."""
    S3FileSystem.clear_instance_cache()
    yield
    S3FileSystem.clear_instance_cache()


@pytest.fixture
def made_by_hadoop(object_store: ObjectStore) -> str:
    """As Spark's checkpoint is: two files, and objects for their folders, and for one in which there is nothing yet."""
    for name in ("", "state/", "state/0/", "state/0/1.delta", "sources/", "metadata"):
        object_store.put(f"folders/{name}", b"" if name.endswith("/") or not name else b"x")
    return object_store.at("folders")


def test_what_stands_for_a_folder_is_no_file_of_it(made_by_hadoop: str) -> None:
    assert Folder(made_by_hadoop).files() == {"metadata": 1, "state/0/1.delta": 1}


def test_folders_are_told_each_once(made_by_hadoop: str) -> None:
    assert Folder(made_by_hadoop).folders() == ["sources", "state"]


def test_what_is_copied_and_cleared_is_gone_with_all_its_folders(
    made_by_hadoop: str, object_store: ObjectStore
) -> None:
    source, target = Folder(made_by_hadoop), Folder(object_store.at("copied"))
    for name in source.files():
        copy_file(source, name, target, name)
    target.write_whole("manifest.json", b"{}")
    assert sorted(target.files()) == ["manifest.json", "metadata", "state/0/1.delta"]
    target.clear(but="manifest.json")
    assert object_store.names("copied") == ["manifest.json"]


def test_a_store_that_nobody_answers_for_is_told_with_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    folder = Folder("s3a://checkpoints/folders")
    for use in (folder.check_there, folder.files, folder.folders, lambda: folder.read("metadata")):
        with pytest.raises(InvalidConfiguration, match=r"s3a://checkpoints/folders can't be .*: Could not connect"):
            use()
    with pytest.raises(InvalidConfiguration, match=r"can't be written: Could not connect"):
        folder.write_whole("metadata", b"{}")


def test_credentials_that_are_not_there_are_told_with_the_path(
    monkeypatch: pytest.MonkeyPatch, object_store: ObjectStore
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere/credentials")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere/config")
    with pytest.raises(InvalidConfiguration, match=r"folders can't be listed: Unable to locate credentials"):
        Folder(object_store.at("folders")).files()


def test_what_goes_wrong_in_the_caller_while_a_file_is_written_is_the_callers(object_store: ObjectStore) -> None:
    class OfTheCaller(Exception):
        pass

    with pytest.raises(OfTheCaller), Folder(object_store.at("written")).writing("a"):
        raise OfTheCaller
