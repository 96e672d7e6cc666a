"""`keyhole completion SHELL`: what a shell is given, so that Tab completes commands, options and files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import shtab

SHELLS = ("bash", "zsh", "fish")

_FILES = frozenset({"FILE", "PATH"})
_FOLDERS = frozenset({"FOLDER", "DIR"})


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The whole script, for `eval` or a file of the shell's.

    Args:
        parser: Of all commands. Its options are marked with what they take.
        shell: One of SHELLS.
    """
    for action in _actions(parser):
        metavar = str(action.metavar or "")
        if metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined] # where shtab looks for it
        elif metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
