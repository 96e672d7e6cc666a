"""What tests name by text is there: what they replace, settings, metrics, and modules of tests that they run.

No type checker reads that, and the further tiers seldom run. Programs in texts are tests/meta/test_programs.py's.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keyhole.metrics.catalogue import BY_NAME
from tests.meta.test_docs import KINDS, OF_JOBS

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
FOLDERS = sorted({file.relative_to(TESTS).parts[0] for file in TESTS.glob("*/**/*.py")})
# In the others a setting or a metric that there isn't may be what a test is about.
FURTHER = ("smoke", "spark", "processes", "fault", "fuzz", "containers", "e2e", "support")
# Of those who run the tests; of compose.yaml; and where a project keeps its checkpoints (`keyhole up`, the chart).
NO_SETTINGS = {"KEYHOLE_REQUIRE", "KEYHOLE_IMAGE_TAG", "KEYHOLE_BASE_IMAGE", "KEYHOLE_TAG", "KEYHOLE_CHECKPOINTS"}
_KINDS: tuple[type[Any], ...] = (*KINDS, *itertools.chain.from_iterable(OF_JOBS.values()))
SETTINGS = {kind.PREFIX + item.name.upper() for kind in _KINDS for item in dataclasses.fields(kind)} | NO_SETTINGS
METRIC = re.compile(r"\bkeyhole_(?:state_server|client_proxy|job|exporter|cluster)_\w*[a-z]\b")
_MODULE = re.compile(r"(?:tests|jobs)(?:\.[a-z_]\w*)+")


def _trees(folder: str) -> Iterator[tuple[str, ast.Module]]:
    for file in sorted((TESTS / folder).rglob("*.py")):
        yield str(file.relative_to(TESTS)), ast.parse(file.read_text())


def _texts(tree: ast.AST) -> Iterator[str]:
    return (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def _imports(tree: ast.AST) -> dict[str, str]:
    """By a name that the file imports, wherever it does, the path of what it is."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.asname or name.name: name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    return found


def _replaced(tree: ast.AST) -> Iterator[str]:
    """The path of each name that `monkeypatch.setattr` replaces, but in a test's own objects."""
    imports = _imports(tree)
    for call in ast.walk(tree):
        match call:
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr"), args=[ast.Constant(value=str(path)), *_]):
                yield path
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr"), args=[of, ast.Constant(value=str(name)), *_]):
                root, _, below = ast.unparse(of).partition(".")
                if root in imports:
                    yield ".".join(part for part in (imports[root], below, name) if part)


def _is_there(path: str) -> bool:
    try:
        pkgutil.resolve_name(path)
    except (ImportError, AttributeError):
        return False
    return True


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_replaced_is_there(folder: str) -> None:
    gone = {file: [path for path in _replaced(tree) if not _is_there(path)] for file, tree in _trees(folder)}
    assert {file: paths for file, paths in gone.items() if paths} == {}


@pytest.mark.parametrize("folder", FURTHER)
def test_modules_that_are_run_by_their_name_are_there(folder: str) -> None:
    gone = {
        file: [text for text in _texts(tree) if _MODULE.fullmatch(text) and not _is_module(text)]
        for file, tree in _trees(folder)
    }
    assert {file: names for file, names in gone.items() if names} == {}


@pytest.mark.parametrize("folder", FURTHER)
def test_settings_and_metrics_are_there(folder: str) -> None:
    gone = {}
    for file, tree in _trees(folder):
        text = " ".join(_texts(tree))
        settings = set(re.findall(r"\bKEYHOLE_[A-Z_]*[A-Z]\b", text)) - SETTINGS
        metrics = set(METRIC.findall(text)) - set(BY_NAME)
        gone[file] = settings | metrics
    assert {file: names for file, names in gone.items() if names} == {}


def test_one_that_is_gone_is_found() -> None:
    tree = ast.parse(
        "from keyhole.metrics import catalogue as of\n"
        "def test(monkeypatch, world):\n"
        "    monkeypatch.setattr(of, 'CATALOGUE', ())\n"
        "    monkeypatch.setattr(of.Metric, 'gone', 1)\n"
        "    monkeypatch.setattr(world, 'anything', 1)\n"
        "    monkeypatch.setattr('time.gone', ())\n"
    )
    gone = [path.rpartition(".")[2] for path in _replaced(tree) if not _is_there(path)]
    assert (gone, len(list(_replaced(tree)))) == (["gone", "gone"], 3)
