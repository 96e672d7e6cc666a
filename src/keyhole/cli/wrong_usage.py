"""What is wrong with a command line is said in one line, with exit code 2."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

from keyhole.cli.exit_codes import ExitCode
from keyhole.errors import InvalidConfiguration, ValueMismatch
from keyhole.terminal.written_out import written_out

_T = TypeVar("_T")


class WrongUsage(Exception):
    """What the command line says contradicts itself, or lacks something. The message says what to write instead."""


class OneLineParser(argparse.ArgumentParser):
    """Without the usage of all options before what is wrong with one; what comes near is named."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse, but what is left over is refused by each command itself, and so by the command's own name."""
        given = sys.argv[1:] if args is None else list(args)
        self._refuse_before_the_command(given)
        known, left = super().parse_known_args(given, namespace)
        if left:
            near = _near(next((word for word in left if word.startswith("-")), ""), self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(left)}{near}")
        return known, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            self.error(f"there is no command {value!r}{_near(value, action.choices)}")
        super()._check_value(action, value)

    def _refuse_before_the_command(self, given: Sequence[str]) -> None:
        """argparse would take the option's value for the command."""
        if self._subparsers is None or not given or not given[0].startswith("-"):
            return
        word = given[0].partition("=")[0]
        if not any(own.startswith(word) for own in self._option_string_actions):
            self.error(f"{word} stands before the command: write it behind, as in `{self.prog} COMMAND {word} ...`")

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


def _near(word: str, known: Iterable[str]) -> str:
    """What was meant, perhaps, as words in parentheses; else nothing."""
    by_word = {name.lstrip("-"): name for name in known}
    # The dashes, which all options have, make none of them alike.
    found = difflib.get_close_matches(word.lstrip("-"), list(by_word), n=1)
    return f" (did you mean {by_word[found[0]]}?)" if found else ""
