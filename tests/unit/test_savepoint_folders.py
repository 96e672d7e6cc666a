"""Folders in an object store, which has no folders: of Hadoop's, an empty object with a slash at its end is left."""

from __future__ import annotations

import pytest

from keyhole.savepoint.folder import Folder, copy_file
from tests.support.object_store import ObjectStore

pytestmark = pytest.mark.usefixtures("credentials")


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
