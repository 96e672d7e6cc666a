"""Where what batches have settled lies in their query's checkpoint: as sinks write it, and savepoints take it along."""

from __future__ import annotations

PINNED = "keyhole"
"""The folder of all of it. In it a folder for each thing, and there a file for each batch, whose name is its number."""


def broadcast_folder(application: str, state: str) -> str:
    """Of what batches have read of a broadcast state."""
    return f"{PINNED}/broadcast/{application}.{state}"


def subtasks_folder(state: str) -> str:
    """Of how many subtasks an operator state has had. The state is the query's own, so of the query's application."""
    return f"{PINNED}/subtasks/{state}"
