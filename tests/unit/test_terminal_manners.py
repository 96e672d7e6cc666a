"""How commands behave beside what they do: exit codes, completion of shells, and what they say while they wait."""

from __future__ import annotations

import argparse
import io
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from keyhole.cli import patience as patient
from keyhole.cli.arguments import parser_of_all
from keyhole.cli.completion import SHELLS, script
from keyhole.cli.doctor import examination
from keyhole.cli.doctor.diagnosis import fault
from keyhole.cli.exit_codes import NOT_AS_IT_SHOULD_BE, ExitCode
from keyhole.cli.main import main
from keyhole.cli.reads import OutputFormat
from keyhole.cli.watch_command import _show
from keyhole.demo import progress_line
from keyhole.model.change import ChangeKind, StateChange
from tests.support.waiting import until


def commands() -> set[str]:
    (of,) = [action for action in parser_of_all()._actions if isinstance(action, argparse._SubParsersAction)]
    return set(of.choices)


def test_exit_codes_are_documented_for_commands_that_there_are() -> None:
    assert {name.split()[0] for names in NOT_AS_IT_SHOULD_BE for name in names.split(", ")} <= commands()
    assert [(code.value, bool(code.meaning)) for code in ExitCode] == [(0, True), (1, True), (2, True), (130, True)]


def test_what_a_watch_prints_of_a_key_is_one_line_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    change = StateChange(ChangeKind.PUT, "\x1b[31m\nput    forged", "\x07", None, None, False, 9, None, False)
    _show(OutputFormat(as_json=False), change)
    assert capsys.readouterr().out == "put    \\x1b[31m\\nput    forged \\x07    epoch 9\n"


def test_a_command_that_is_broken_off_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_off(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("keyhole.cli.token.run", broken_off)
    monkeypatch.setattr("keyhole.cli.tool_commands.Path", broken_off)
    assert main(["token", "me", "--to", "file"]) == 130


def test_bash_completes_commands_options_and_files(tmp_path: Path) -> None:
    (tmp_path / "completion.sh").write_text(script(parser_of_all(), "bash"))
    asked = (
        "source ./completion.sh; for typed in 'do' 'doctor --str' 'savepoint c' 'status --w'; do "
        'COMP_WORDS=(keyhole $typed); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE="keyhole $typed"; COMPREPLY=(); '
        'COMP_POINT=${#COMP_LINE}; _shtab_keyhole; echo "${COMPREPLY[@]}"; done'
    )
    done = subprocess.run(["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True)
    first, *others = [line.split() for line in done.stdout.splitlines()]
    assert {"doctor", "down"} <= set(first)
    assert others == [["--strict"], ["create"], ["--watch"]]


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_is_told_all_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert not [command for command in commands() if command not in printed]


def test_what_takes_long_says_what_it_waits_for_and_what_is_quick_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with patient.patience("waiting for nothing"):
        pass
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(patient, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(patient, "_SHOW_SECONDS", 0.001)
    monkeypatch.setattr(progress_line, "_SAY_AGAIN_SECONDS", 0.0)
    said = ""

    def is_said() -> bool:
        nonlocal said
        out, err = capsys.readouterr()
        assert not out
        said += err
        return "waiting for the proxy: 0 s" in said

    with patient.patience("waiting for the proxy"):
        until(is_said)


@pytest.mark.parametrize(
    ("is_terminal", "environ", "has_colours"),
    [(True, {}, True), (True, {"NO_COLOR": "1"}, False), (False, {}, False)],
)
def test_no_colours_in_a_pipe_and_none_where_they_are_not_wanted(
    is_terminal: bool, environ: dict[str, str], has_colours: bool
) -> None:
    file = io.StringIO()
    terminal = {"TERM": "xterm-256color", **environ}
    console = Console(file=file, force_terminal=is_terminal, width=60, color_system="auto", _environ=terminal)
    examination._show(console, fault("it", "is wrong", "mend it"))
    assert ("31m" in file.getvalue()) is has_colours
    if not is_terminal:
        assert file.getvalue() == "fault    it: is wrong\n         -> mend it\n"
