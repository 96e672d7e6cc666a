"""The words of `keyhole new`. Nothing is run here."""

from __future__ import annotations

import argparse
from pathlib import Path

from keyhole.cli import tool_commands


def add_new(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command `new` to the others."""
    new = commands.add_parser("new", help="make a project of your own: a job, a reader, a sample of data, a test")
    new.add_argument("directory", type=Path, metavar="DIR", help="a new folder, or an empty one")
    new.add_argument("--name", metavar="APP", help="the application's name; default: the folder's")
    new.set_defaults(run=tool_commands.run_new)
