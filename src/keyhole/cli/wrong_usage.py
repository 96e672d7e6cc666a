"""What is wrong with a command line is said in one line, with exit code 2."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn, TypeVar

from keyhole.cli.exit_codes import ExitCode
from keyhole.errors import InvalidConfiguration, ValueMismatch
from keyhole.terminal.written_out import written_out

_T = TypeVar("_T")


class WrongUsage(Exception):
    """What the command line says contradicts itself, or lacks something. The message says what to write instead."""


class OneLineParser(argparse.ArgumentParser):
    """Without the usage of all options before what is wrong with one."""

    def error(self, message: str) -> NoReturn:
        """Says it, and ends the process."""
        self.exit(ExitCode.WRONG_USAGE, f"{self.prog}: {written_out(message)}; `{self.prog} --help` says more\n")


def as_usage(read: Callable[[], _T]) -> _T:
    """What it returns, of what was typed.

    Raises:
        WrongUsage: It raises InvalidConfiguration or ValueMismatch; with that message.
    """
    try:
        return read()
    except (InvalidConfiguration, ValueMismatch) as error:
        raise WrongUsage(error.message) from error
