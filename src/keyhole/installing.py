"""How a part of Keyhole is installed, for error messages, and whether it is."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from keyhole.errors import InvalidConfiguration


def with_extra(names: str) -> str:
    """What to install for the extras of these names: 'server,kafka'."""
    return f"keyhole-spark[{names}] (from a clone or by its git URL, as README.md says: no package index has it)"


def require(what: str, extra: str, modules: Iterable[str]) -> None:
    """Passes where all modules can be found; none is imported.

    Raises:
        InvalidConfiguration: Some can't; the message says that `what` needs them, and which extras bring them.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidConfiguration(f"{what} needs {', '.join(missing)}: install {with_extra(extra)}")
