"""Files and modules that pages, comments and docstrings name are there."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.of_all import of_all

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "services/**/*.md", "jobs/**/*.md", "tests/**/*.md")
    for page in ROOT.glob(pattern)
    if page.name != "CHANGELOG.md" and "node_modules" not in page.parts  # the former tells what was
)
SOURCES = sorted(
    file
    for pattern in ("src/**/*.py", "services/**/*.py", "jobs/**/*.py", "protos/**/*.proto")
    for file in ROOT.glob(pattern)
)
# Where a path that is named may begin.
_BASES = ("", "src", "src/keyhole", "services", "services/state_server", "services/client_proxy")
_PATH = re.compile(r"(?<![\w/.*])((?:[\w.]+/)+)(\w+|\{[\w,]+\})\.py\b")
_MODULE = re.compile(r"(?<![\w.@/-])((?:keyhole|services)(?:\.[a-z_]\w*)+)")
_NO_MODULES = (
    "keyhole.v1",
    "keyhole.audit",
    "keyhole.exposed",
    "keyhole.grouping_key",
    "keyhole.shop",
    "keyhole.properties",
)


@functools.cache
def _is_file(path: Path) -> bool:
    return path.is_file()


@functools.cache
def _is_package(path: Path) -> bool:
    return path.is_dir() or path.with_suffix(".py").is_file()


def _is_there(path: str, beside: Path) -> bool:
    return any(_is_file(base / path) for base in (beside, *(ROOT / base for base in _BASES)))


def _by_folder(files: Iterable[Path]) -> dict[str, list[Path]]:
    """A test for each folder: one for each file is slower than what it looks at."""
    found = defaultdict(list)
    for file in files:
        found["/".join(file.relative_to(ROOT).parent.parts[:3]) or "."].append(file)
    return found


def _missing_paths(text: str, beside: Path) -> list[str]:
    return [
        f"{folder}{name}.py"
        for folder, names in _PATH.findall(text)
        for name in names.strip("{}").split(",")
        if not _is_there(f"{folder}{name}.py", beside)
    ]


def _missing_modules(text: str) -> list[str]:
    missing = []
    for name in _MODULE.findall(text):
        if name.startswith(_NO_MODULES) or re.search(r"\.(md|py|pyi|txt|log|json|yaml)$", name):
            continue
        root = ROOT / "src" if name.startswith("keyhole") else ROOT
        # The last word may be what a module has.
        parts = name.split(".")
        found = [root.joinpath(*parts[:end]) for end in (len(parts), len(parts) - 1)]
        if not any(map(_is_package, found)) or (len(parts) > 3 and not _is_package(root.joinpath(*parts[:3]))):
            missing.append(name)
    return missing


@of_all(_by_folder(PAGES))
def test_pages_name_files_and_modules_that_there_are(folder: str) -> None:
    missing = {}
    for page in _by_folder(PAGES)[folder]:
        text = page.read_text()
        # In testing.md `keyhole` is a fixture.
        modules = [] if page.name == "testing.md" else _missing_modules(text)
        missing[str(page.relative_to(ROOT))] = _missing_paths(text, page.parent) + modules
    assert {page: names for page, names in missing.items() if names} == {}


@of_all(_by_folder(SOURCES))
def test_comments_name_files_and_modules_that_there_are(folder: str) -> None:
    missing = {}
    for file in _by_folder(SOURCES)[folder]:
        if "v1" not in file.parts:
            text = file.read_text()
            missing[str(file.relative_to(ROOT))] = _missing_paths(text, file.parent) + _missing_modules(text)
    assert {file: names for file, names in missing.items() if names} == {}


def test_the_tests_that_hold_the_protocols_invariants_exist() -> None:
    page = (ROOT / "src/keyhole/protocol/__init__.py").read_text()
    named = re.findall(r"(tests/[\w/]+\.py):\s+((?:[\w.]+(?:, )?)+)", page)
    assert len(named) >= 9
    for file, names in named:
        text = (ROOT / file).read_text()
        assert [
            name for name in names.split(", ") for part in name.split(".") if not re.search(rf"\b{part}\b", text)
        ] == []


_ROW = re.compile(r"^\| `([a-z_]+/)`[^|]*\|(.*)\|$", re.MULTILINE)
_FILE = re.compile(r"(?<![\w./*])(\w+\.py)\b")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name == "README.md"], ids=lambda page: page.parent.name
)
def test_files_that_a_row_names_of_a_folder_are_in_it(page: Path) -> None:
    rows = _ROW.findall(page.read_text())
    named = [page.parent / folder / file for folder, row in rows for file in _FILE.findall(row)]
    assert [str(file.relative_to(ROOT)) for file in named if file.parent.is_dir() and not file.is_file()] == []
