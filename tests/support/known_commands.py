"""The parser of all of Keyhole's commands, made once for a process: that takes far longer than to ask it."""

from __future__ import annotations

import argparse
import functools

from keyhole.cli.arguments import parser_of_all


@functools.cache
def known_commands() -> argparse.ArgumentParser:
    """For who asks it often, and not what it takes of the environment."""
    return parser_of_all()
