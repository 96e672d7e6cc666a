"""Docstrings and comments say something, in sentences that are read once: neither too few words nor too many."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src/keyhole", "services", "jobs")
FILES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if not path.is_relative_to(ROOT / "src" / "keyhole" / "v1")
)
FEWEST_WORDS, MOST_WORDS = 5, 35
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# An item of a list, or of what a function takes and raises, and a row of a table begin anew.
_BREAK = re.compile(r"\n\s*\n|\n(?=\s*[-*|] )|\n(?=.*\S {2,}\S)|\n(?= +[\w, ./]+: )")
_END = re.compile(r"(?<=[.!?])\s+")


class Text(NamedTuple):
    """A docstring, or comment lines that follow each other, and the line on which it begins."""

    line: int
    text: str


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def _docstrings(path: Path) -> Sequence[Text]:
    documented = (node for node in ast.walk(_tree(path)) if isinstance(node, _DOCUMENTED))
    return [Text(of.body[0].lineno, text) for of in documented if (text := ast.get_docstring(of)) is not None]


def _comments(source: str) -> Iterator[Text]:
    """Lines of comment alone: one behind code is too short to count."""
    lines: list[str] = []
    for number, line in enumerate([*source.splitlines(), ""], start=1):
        if line.lstrip().startswith("#"):
            lines.append(line.lstrip("#: "))
        elif lines:
            yield Text(number - len(lines), "\n".join(lines))
            lines = []


def _sentences(text: str) -> Iterator[str]:
    for part in _BREAK.split(text):
        yield from _END.split(" ".join(part.split()))


def _words(text: str) -> int:
    return len(re.findall(r"\S*\w\S*", text))


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_has_four_words_or_fewer(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{of.line}: {of.text}"
        for path in FILES
        if path.is_relative_to(ROOT / folder)
        for of in _docstrings(path)
        if _words(of.text) < FEWEST_WORDS
    ]
    assert found == [], "say what is guaranteed; or leave it out where the name, or the documented base, says all"


def _texts(path: Path) -> Iterator[Text]:
    yield from _docstrings(path)
    yield from _comments(path.read_text())


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_sentence_of_a_docstring_or_comment_has_more_than_35_words(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{of.line}: {sentence}"
        for path in FILES
        if path.is_relative_to(ROOT / folder)
        for of in _texts(path)
        for sentence in _sentences(of.text)
        if _words(sentence) > MOST_WORDS
    ]
    assert found == [], "make several sentences of it"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_public_function_and_class_of_a_module_has_a_docstring(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path in FILES
        if path.is_relative_to(ROOT / folder)
        for node in _tree(path).body
        if isinstance(node, _DOCUMENTED[1:]) and not node.name.startswith("_") and ast.get_docstring(node) is None
    ]
    assert found == []


def test_sentences_are_counted_as_they_are_read() -> None:
    text = "One. Two: no more; `three`.\n\nArgs:\n    name: Four.\n    other: Five\n        and more.\n\n    a/b    Six"
    found = list(_sentences(text))
    assert found == [
        "One.",
        "Two: no more; `three`.",
        "Args:",
        "name: Four.",
        "other: Five and more.",
        "a/b Six",
    ]
    found = [(of.line, of.text) for of in _comments("x = 1  # one\n# two\n# three\ny = 2  # four\n")]
    assert found == [(2, "two\nthree")]
