"""What the pages show in Python. tests/meta/test_snippets.py says which of it runs, and checks the names of all."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str) -> list[str]:
    """The blocks of Python of a page, in their order.

    Args:
        page: Its path from the root.
    """
    found = re.findall(r"^( *)```python\n(.*?)^\1```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(code) for _, code in found]


SNIPPETS = blocks("docs/kinds.md")


def snippet(holding: str) -> str:
    """The one of docs/kinds.md that has this in it."""
    (code,) = (one for one in SNIPPETS if holding in one)
    return code
