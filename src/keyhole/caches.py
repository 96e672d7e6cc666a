"""Where this user's machine keeps what can be had again: jars, archives of classes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cache_dir(environ: Mapping[str, str], name: str) -> Path:
    """XDG_CACHE_HOME/keyhole/NAME, or ~/.cache/keyhole/NAME. May not exist yet."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "keyhole" / name
