"""What `--json` prints: one line of JSON, letters as they are, whatever the output can carry."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

import keyhole
from keyhole.cli.main import main
from keyhole.cli.reads import OutputFormat
from keyhole.terminal.json_output import json_line

NAMES = "Zürich 🌡 中"


def test_letters_are_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    OutputFormat(as_json=True).rows([{"key": ["ü", 1], NAMES: datetime(2026, 1, 1, tzinfo=UTC)}], "")
    assert capsys.readouterr().out == f'[{{"key": ["ü", 1], "{NAMES}": "2026-01-01 00:00:00+00:00"}}]\n'


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("utf-8", '"Zürich 🌡 中"'),
        ("latin-1", r'"Zürich \ud83c\udf21 \u4e2d"'),
        ("ascii", r'"Z\u00fcrich \ud83c\udf21 \u4e2d"'),
        ("cp932", r'"Z\u00fcrich \ud83c\udf21 中"'),
    ],
)
def test_what_the_output_cant_carry_is_escaped_and_means_the_same(encoding: str, shown: str) -> None:
    line = json_line(NAMES, encoding)
    assert line == shown
    assert json.loads(line.encode(encoding).decode(encoding)) == NAMES


def test_nothing_in_it_controls_a_terminal_ends_the_line_or_is_no_text() -> None:
    value = "".join(map(chr, range(0xA0))) + "\u2028\u2029\ud800"
    line = json_line({value: value}, "utf-8")
    assert line.encode().isascii()
    assert line.isprintable()
    assert json.loads(line) == {value: value}


def test_every_command_prints_its_json_by_that() -> None:
    """A `print(json.dumps(...))` would escape all letters, or let through what controls a terminal."""
    source = Path(keyhole.__file__).parent
    found = [
        path.name
        for part in ("cli", "terminal")
        for path in (source / part).rglob("*.py")
        if re.search(r"print\(\s*json\.dumps", path.read_text())
    ]
    assert found == []


def test_a_command_whose_text_the_output_cant_carry_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    monkeypatch.setattr("keyhole.cli.size.size_command.run", lambda options, *, as_json: print(NAMES) or 0)
    assert main(["size", "--keys", "1", "--updates", "1/s"]) == 0
    assert written.getvalue() == rb"Z\xfcrich \U0001f321 \u4e2d" + b"\n"
