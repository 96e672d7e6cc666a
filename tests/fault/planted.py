"""Bugs that are planted into a state server, so that it is shown that the checker catches them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

PLANTS: Mapping[str, Callable[[], None]] = {}


def plant(name: str) -> None:
    """Changes the state server of this process. Empty: nothing."""
    if name:
        PLANTS[name]()
