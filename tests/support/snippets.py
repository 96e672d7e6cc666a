"""What docs/kinds.md shows in Python."""

from __future__ import annotations

import re
from pathlib import Path

SNIPPETS: list[str] = re.findall(
    r"```python\n(.*?)```", (Path(__file__).resolve().parents[2] / "docs" / "kinds.md").read_text(), re.DOTALL
)


def snippet(holding: str) -> str:
    """The one that has this in it."""
    (code,) = (one for one in SNIPPETS if holding in one)
    return code
