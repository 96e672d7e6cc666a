"""Files and modules that pages, comments and docstrings name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "services/**/*.md", "jobs/**/*.md", "tests/**/*.md")
    for page in ROOT.glob(pattern)
    if page.name != "CHANGELOG.md"  # tells what was
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


def _is_there(path: str, beside: Path) -> bool:
    return any((base / path).exists() for base in (beside, *(ROOT / base for base in _BASES)))


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
        if not any(path.is_dir() or path.with_suffix(".py").exists() for path in found) or (
            len(parts) > 3
            and not (root.joinpath(*parts[:3]).is_dir() or root.joinpath(*parts[:3]).with_suffix(".py").exists())
        ):
            missing.append(name)
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_files_and_modules_that_there_are(page: Path) -> None:
    text = page.read_text()
    assert _missing_paths(text, page.parent) == []
    if page.name != "testing.md":  # where `keyhole` is a fixture
        assert _missing_modules(text) == []


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_comment_names_files_and_modules_that_there_are(file: Path) -> None:
    if "v1" in file.parts:
        return
    text = file.read_text()
    assert _missing_paths(text, file.parent) == []
    assert _missing_modules(text) == []


def test_the_tests_that_hold_the_protocols_invariants_exist() -> None:
    page = (ROOT / "src/keyhole/protocol/__init__.py").read_text()
    named = re.findall(r"(tests/[\w/]+\.py):\s+((?:[\w.]+(?:, )?)+)", page)
    assert len(named) >= 9
    for file, names in named:
        text = (ROOT / file).read_text()
        assert [
            name for name in names.split(", ") for part in name.split(".") if not re.search(rf"\b{part}\b", text)
        ] == []
