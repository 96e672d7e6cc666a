"""The code that the pages show. tests/meta/test_blocks.py says what runs or checks each block of it."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

INDENTED = "indented"
"""The language of a block without a fence."""

_FENCED = re.compile(r"^( *)(`{3,})(.*)\n((?:.*\n)*?)\1\2 *$", re.MULTILINE)
# Behind an empty line, four columns in; three more where it belongs to an item of a list.
_INDENTED = re.compile(r"(?<=\n\n)(?:(?: {4}.*\S.*|(?=\n {4}))\n)+", re.MULTILINE)


class Block(NamedTuple):
    """One block of code.

    Attributes:
        page: Its path from the root.
        line: The number of the line at which it begins.
        language: As its fence says, or INDENTED.
        code: Without what it is indented by.
    """

    page: str
    line: int
    language: str
    code: str

    @property
    def first(self) -> str:
        """Its first line, by which it is known."""
        return self.code.partition("\n")[0]


def blocks_of(page: str) -> list[Block]:
    """All of a page, in their order.

    Args:
        page: Its path from the root.
    """
    text = (ROOT / page).read_text()
    found = [_block(page, text, one, one[3].strip(), one[4]) for one in _FENCED.finditer(text)]
    outside = _FENCED.sub(lambda fenced: "\n" * fenced[0].count("\n"), text)
    found += [_block(page, outside, one, INDENTED, one[0]) for one in _INDENTED.finditer(outside)]
    return sorted(found, key=lambda block: block.line)


def _block(page: str, text: str, found: re.Match[str], language: str, code: str) -> Block:
    line = text.count("\n", 0, found.start()) + 1
    return Block(page, line, language, textwrap.dedent(code).lstrip("\n"))


def blocks(page: str) -> list[str]:
    """The blocks of Python of a page, in their order.

    Args:
        page: Its path from the root.
    """
    return [block.code for block in blocks_of(page) if block.language == "python"]


def commands(code: str) -> list[str]:
    """The lines of a block of a shell, each whole: without its prompt and its comment, and to where its quotes end."""
    found, begun = list[str](), ""
    for line in re.sub(r"\\\n\s*", " ", code).splitlines():
        begun = f"{begun}\n{line}" if begun else re.sub(r"(?:^|\s+)#\s.*$", "", line).strip().removeprefix("$ ")
        if begun and begun.count("'") % 2 == begun.replace('\\"', "").count('"') % 2 == 0:
            found.append(begun)
            begun = ""
    return found + [begun] * bool(begun)


SNIPPETS = blocks("docs/kinds.md")


def snippet(holding: str) -> str:
    """The one of docs/kinds.md that has this in it."""
    (code,) = (one for one in SNIPPETS if holding in one)
    return code
