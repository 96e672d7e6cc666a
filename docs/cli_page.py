"""docs/cli.md, from the words of the command line.

`uv run python docs/generate.py` writes it; tests/meta/test_metrics.py checks that it is current.
"""

import argparse
import re
from collections.abc import Iterator

from keyhole.cli.arguments import parser_of_all
from keyhole.cli.exit_codes import NOT_AS_IT_SHOULD_BE, ExitCode

_INTRODUCTION = """# The command line

Reference, for all who use `keyhole`: every command with its options, and the exit codes. The page is made from
`src/keyhole/cli` by `uv run python docs/generate.py`: don't edit it. How-to is in [operations](operations.md),
[up](up.md), [feed](feed.md) and [savepoints](savepoints.md).

## For all commands

- Commands that read ask the client proxies that `--proxy` names, or `KEYHOLE_PROXY`, or 127.0.0.1:7400.
- `--json` prints one JSON document (a line a look where a command looks again and again), in which numbers are
  numbers and times are in seconds. Letters stand in it as they are, as UTF-8 has them; what another encoding of the
  output can't carry is escaped. Tables are for people, and may change.
- In a pipe there are no colours, and tables are as wide as they need. `NO_COLOR=1` turns colours off in a
  terminal, too.
- What takes longer than 2 seconds says on standard error what it waits for.
- `eval "$(keyhole completion bash)"` in `~/.bashrc` has Tab complete commands, options and files; for zsh and fish
  see [below](#keyhole-completion).

"""

_LEFT_OUT = argparse._HelpAction, argparse._SubParsersAction


def page() -> str:
    """The whole page of the command line."""
    parts = [_INTRODUCTION, "## Exit codes\n\n| code | when |\n|---|---|\n"]
    parts += [f"| {code.value} | {code.meaning} |\n" for code in ExitCode]
    parts.append("\nBeside errors, 1 says:\n\n| command | where |\n|---|---|\n")
    parts += [f"| `keyhole {name}` | {where} |\n" for name, where in NOT_AS_IT_SHOULD_BE.items()]
    for name, help_, command in _commands(parser_of_all(), "keyhole"):
        parts.append(f"\n## {name}\n\n{help_[:1].upper()}{help_[1:]}.\n")
        rows = [_argument(command, action) for action in command._actions if not isinstance(action, _LEFT_OUT)]
        if rows:
            parts += ["\n| argument or option | |\n|---|---|\n", *rows]
        if name == "keyhole completion":
            parts.append(_COMPLETION)
    return "".join(parts)


_COMPLETION = """
| shell | where it belongs |
|---|---|
| bash | `eval "$(keyhole completion bash)"` in `~/.bashrc` |
| zsh | `keyhole completion zsh > _keyhole`, in a folder of `$fpath`, before `compinit` |
| fish | `keyhole completion fish > ~/.config/fish/completions/keyhole.fish` |
"""


def _commands(parser: argparse.ArgumentParser, beginning: str) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, command in action.choices.items():
                if not any(isinstance(one, argparse._SubParsersAction) for one in command._actions):
                    yield f"{beginning} {name}", helps.get(name, ""), command
                yield from _commands(command, f"{beginning} {name}")


def _argument(command: argparse.ArgumentParser, action: argparse.Action) -> str:
    takes = action.metavar if action.metavar is not None else "" if action.nargs == 0 else action.dest.upper()
    if action.choices is not None:
        takes = "\\|".join(map(str, action.choices))
    names = ", ".join(f"`{name}{f' {takes}' if takes else ''}`" for name in action.option_strings) or f"`{takes}`"
    text = (action.help or "") % {**vars(action), "prog": command.prog}
    return f"| {names} | {re.sub('[|]', chr(92) + '|', text)} |\n"
