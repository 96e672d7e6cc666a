"""Every block of Python in the pages can be Python, and what it names of libraries, and calls with, is there.

Many of them run, too: RUN says which, and where. The rest takes names for granted that a reader has (`client`, a data
frame), so that only what it imports can be checked.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.snippets import ROOT, blocks

RUN = {
    "README.md": "tests/spark/test_documented_jobs.py",  # and tests/rpc/test_documented_reads.py what reads
    "docs/backfill.md": "tests/spark/test_documented_jobs.py",
    "docs/coming-from.md": "tests/rpc/test_documented_services.py",
    "docs/compose.md": "tests/spark/test_documented_feeds.py",
    "docs/fastapi.md": "tests/rpc/test_documented_services.py",
    "docs/feed.md": "tests/spark/test_documented_feeds.py",
    "docs/first-state.md": "tests/spark/test_documented_tutorial.py",
    "docs/indexes.md": "tests/rpc/test_documented_queries.py",
    "docs/joins.md": "tests/spark/test_documented_jobs.py",
    "docs/kinds.md": "tests/spark/test_documented_kinds.py",
    "docs/mirror.md": "tests/rpc/test_documented_queries.py",
    "docs/predicates.md": "tests/rpc/test_documented_queries.py",
    "docs/reads.md": "tests/rpc/test_documented_reads.py",
    "docs/realtime.md": "tests/spark/test_documented_jobs.py",
    "docs/security.md": "tests/rpc/test_documented_queries.py",
    "docs/spark-reading.md": "tests/spark/test_documented_jobs.py",
    "docs/spark.md": "tests/spark/test_documented_jobs.py",
    "docs/sql.md": "tests/rpc/test_documented_queries.py",
    "docs/store-of-your-own.md": "tests/contract/test_documented_store.py",
    "docs/testing.md": "tests/rpc/test_documented_queries.py",
    "docs/up.md": "tests/spark/test_documented_feeds.py",
    "docs/watch.md": "tests/rpc/test_documented_queries.py",
    "docs/windows.md": "tests/spark/test_documented_jobs.py",
}
"""All blocks of these are run, word for word."""

PAGES = sorted(
    str(page.relative_to(ROOT))
    for pattern in ("*.md", "docs/*.md", "*/*/README.md")
    for page in ROOT.glob(pattern)
    if "```python" in page.read_text()
)
# What a page means without importing it, as it shows the import once.
_TAKEN = {"keyhole": "keyhole", "queryable": "keyhole.spark.queryable", "F": "pyspark.sql.functions"}
# Modules that the pages make.
_OF_THE_READER = {"papyrus_store", "service"}


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each imported name with the path of what it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((name.asname or name.name.partition(".")[0], name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module not in _OF_THE_READER:
            yield from ((name.asname or name.name, f"{node.module}:{name.name}") for name in node.names)


def _found(path: str) -> Any:
    """Raises ImportError or AttributeError where it isn't there."""
    module, _, name = path.partition(":")
    if name:
        try:
            return importlib.import_module(f"{module}.{name}")
        except ModuleNotFoundError:
            pass
    return pkgutil.resolve_name(path)


def _problems(code: str) -> list[str]:
    """What a block names that isn't there, or calls as it can't be."""
    tree = compile(code, "block", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    made = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    made |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names = {name: of for name, of in _TAKEN.items() if name not in made} | dict(_imported(tree))
    known: dict[str, Any] = {}
    problems = []
    for name, path in names.items():
        try:
            known[name] = _found(path)
        except (ImportError, AttributeError) as error:
            problems.append(f"{path}: {error}")
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Load):
            _of(node, known, problems)
        if isinstance(node, ast.Call) and (called := _of(node.func, known, [])) is not None:
            problems += _refused(node, called)
    return problems


def _of(node: ast.expr, known: dict[str, Any], problems: list[str]) -> Any:
    """What an expression of names is, as far as it begins with an imported one; None: not known."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    of = _of(node.value, known, problems)
    # Of a class the instances have more than it has.
    if of is None or not (inspect.ismodule(of) or hasattr(of, node.attr)):
        return None
    if not hasattr(of, node.attr):
        problems.append(f"{ast.unparse(node)} is not there")
    return getattr(of, node.attr, None)


def _refused(call: ast.Call, called: Any) -> list[str]:
    if not str(getattr(called, "__module__", "")).startswith("keyhole") or inspect.ismodule(called):
        return []
    given = {word.arg for word in call.keywords if word.arg}
    parameters = inspect.signature(called).parameters.values()
    known = {one.name for one in parameters}
    for more in (one.name for one in parameters if one.kind is one.VAR_KEYWORD):
        options = typing.get_args(typing.get_type_hints(called).get(more))
        if not options:
            return []
        known |= set(typing.get_type_hints(options[0]))  # Unpack[...] of a TypedDict
    return [f"{ast.unparse(call.func)} takes no {name}=" for name in sorted(given - known)]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_in_python_can_be_and_names_what_there_is(page: str) -> None:
    problems = {code.partition("\n")[0]: found for code in blocks(page) if (found := _problems(code))}
    assert problems == {}


@pytest.mark.parametrize("page", sorted(RUN))
def test_pages_whose_blocks_run_are_named_by_the_test_that_runs_them(page: str) -> None:
    assert page in PAGES
    assert page.rpartition("/")[2] in (ROOT / RUN[page]).read_text()


def test_what_is_wrong_is_found() -> None:
    assert not _problems(
        "async with keyhole.AsyncClient('a:1', credentials=None) as c:\n    await c.get('a', 'b', 'c')"
    )
    assert _problems("import keyhole\nkeyhole.Cleint('a:1')")
    assert _problems("from msgspec import NotThere")
    assert _problems("queryable.value('a', kye='b')")
    assert not _problems("queryable = 1\nprint(queryable.real)")
    with pytest.raises(SyntaxError):
        _problems("a b")
