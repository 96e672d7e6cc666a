"""How a person types the command `keyhole` here, for messages that say what to type."""

from __future__ import annotations

from collections.abc import Mapping

# By `uv run`: the command is on the path of what it starts alone.
_STARTED_BY_UV = "UV_RUN_RECURSION_DEPTH"


def keyhole_command(environ: Mapping[str, str]) -> str:
    """`keyhole`, or `uv run keyhole` where it was started so."""
    return "uv run keyhole" if _STARTED_BY_UV in environ else "keyhole"
