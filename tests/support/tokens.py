"""Tokens made in a test, as `keyhole token` makes them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from keyhole.security import tokens


def make_tokens(directory: Path, *names: str, expires: datetime | None = None) -> str:
    """Each into a file NAME.token below the directory; what a file of tokens has of them."""
    entries = []
    for name in names:
        token, entry = tokens.new(name, expires)
        (directory / f"{name}.token").write_text(token + "\n")
        entries.append(entry)
    return "\n".join(entries)
