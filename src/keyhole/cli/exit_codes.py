"""How a command ends, for scripts: the same of every command. docs/cli.md lists them."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """What a command returns to the shell."""

    DONE = 0
    NOT_DONE = 1
    WRONG_USAGE = 2
    BROKEN_OFF = 130

    @property
    def meaning(self) -> str:
        """For a person: when a command ends with it."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.DONE: "It is done; what was looked at is as it should be.",
    ExitCode.NOT_DONE: (
        "It could not be done, and standard error says why and what to do; or what was looked at is not as it should "
        "be, as said below. Also where whatever reads the output has ended."
    ),
    ExitCode.WRONG_USAGE: (
        "The command line is wrong: an option that there is not, a value that can't be, options that contradict each "
        "other. One line says so."
    ),
    ExitCode.BROKEN_OFF: (
        "It was broken off by Ctrl-C. What runs until then ends with 0: `top`, `status --watch`, `feed`, `demo`, "
        "`job`, `dev`, `up --foreground`."
    ),
}

NOT_AS_IT_SHOULD_BE = {
    "doctor": "something is a fault; with `--strict`, also where something is a warning",
    "drain": "the server still owns key groups as the time to wait is over",
    "drop": "nothing was dropped: `--yes` lacks, or a server could not be asked",
    "explain": "a key has no answer; an absent key has one",
    "job, demo": "with `--verify`, a key differs",
    "move": "the server does not own all of the key groups as the time to wait is over, or a server could not be asked",
    "retire": "a server could not be asked",
    "savepoint list": "one is not sound",
    "verify": "something differs, or could not be compared",
}
"""What 1 says of commands that look at something, beside an error."""
