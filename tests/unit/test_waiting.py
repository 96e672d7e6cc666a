"""Who waits is told what for: in one line of a terminal, elsewhere by a line now and then."""

from __future__ import annotations

import io

from rich.console import Console

from keyhole.demo.progress_line import ProgressLine


def shown(terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=80)
    with ProgressLine(console) as waiting:
        for tenths in range(400):
            waiting.show("waiting for Spark", tenths / 10)
    return file.getvalue()


def test_without_a_terminal_there_is_a_line_now_and_then() -> None:
    assert shown(terminal=False) == "waiting for Spark: 15 s\nwaiting for Spark: 30 s\n"


def test_in_a_terminal_there_is_one_line_that_goes_away() -> None:
    output = shown(terminal=True)
    assert "waiting for Spark: 39 s" in output
    assert output.count("\n") <= 1
    erased = "\x1b[2K"
    assert output.rindex(erased) > output.rindex("waiting for Spark")
