"""Where what draws the pictures can't be fetched, the site is built all the same, with the pictures as text."""

from __future__ import annotations

import http.client
import importlib.util
import sys
import types
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

HOOKS = Path(__file__).resolve().parents[2] / "docs" / "site_hooks.py"


def hooks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, without MkDocs: nothing of it is called here."""
    for name, has in {"mkdocs.structure.files": ("File", "Files"), "pymdownx.slugs": ("slugify",)}.items():
        for package in (name.rpartition(".")[0], name.partition(".")[0]):
            monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
        module = types.ModuleType(name)
        for attribute in has:
            setattr(module, attribute, object)
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("site_hooks_alone", HOOKS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Broken:
    """An answer whose connection breaks while it is read."""

    def __enter__(self) -> Broken:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self) -> bytes:
        raise http.client.IncompleteRead(b"some")


@pytest.mark.parametrize(
    "answer",
    [
        urllib.error.URLError("no route"),
        TimeoutError(),
        ConnectionResetError(104, "reset by peer"),
        http.client.RemoteDisconnected("closed"),
        http.client.BadStatusLine("?"),
        Broken(),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_the_pictures_stay_text(answer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def urlopen(url: str, timeout: float) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    assert hooks(monkeypatch)._cached_mermaid() is None
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_can_not_be_written_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Whole(Broken):
        def read(self) -> bytes:
            return b"all"

    (tmp_path / "keyhole").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: Whole())
    assert hooks(monkeypatch)._cached_mermaid() is None
