"""How a part of Keyhole is installed, for error messages."""

from __future__ import annotations


def with_extra(names: str) -> str:
    """What to install for the extras of these names: 'server,kafka'."""
    return f"keyhole-spark[{names}] (from a clone or by its git URL, as README.md says: no package index has it)"
