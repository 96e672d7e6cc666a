"""What a person sees of rows: in a terminal of any width each word stands whole, and in a pipe each row is one line."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from keyhole.terminal import tables

ANSWER = {
    "key": "sensor-42",
    "found": True,
    "value": {"last": 3.46, "min": 2.63, "max": 5.07, "mean": 4.006185567010308, "readings": 97},
    "epoch": 1234,
    "committed": "21.8 s",
    "age": "0.4 s",
    "lag": None,
    "server": "server-0",
    "role": "owner",
}

HOLDING = {
    "key_groups": 4,
    "all_key_groups": 12,
    "restored_records": 1_000,
    "records_to_restore": 5_000,
    "lag_epochs": 2,
    "staleness_seconds": 3661.04,
    "commit_age_seconds": None,
    "server": "server-0",
}


def printed(width: int | None, *rows: dict[str, Any], title: str = "weather/sensors") -> str:
    """None: into a pipe."""
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=width is not None, color_system=None)
    tables.show(console, rows, title)
    return file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100])
def test_where_a_table_has_no_room_each_field_has_a_line_of_its_own(width: int) -> None:
    shown = printed(width, ANSWER, {**ANSWER, "key": "nobody", "found": False, "value": None}).splitlines()
    assert max(map(len, shown)) <= width
    assert "  committed  21.8 s" in [line.rstrip() for line in shown]
    assert "  epoch      1,234" in [line.rstrip() for line in shown]
    assert [line.split()[1] for line in shown if line.startswith("  key ")] == ["sensor-42", "nobody"]


def test_what_would_break_lines_or_move_the_terminal_is_written_out() -> None:
    shown = printed(None, {"key": "a\tb\nc\x1b[2J", "value": {"of": "d\ne"}})
    (line,) = (line for line in shown.splitlines() if r"a\tb\nc\x1b[2J" in line)
    assert r"d\ne" in line
    assert "\x1b" not in shown


@pytest.mark.parametrize("width", [110, 140, 300])
def test_a_table_folds_its_widest_column_alone(width: int) -> None:
    shown = printed(width, ANSWER)
    assert max(map(len, shown.splitlines())) <= width
    (line,) = (line for line in shown.splitlines() if "sensor-42" in line)
    assert {"sensor-42", "yes", "1,234", "21.8 s", "server-0", "owner"} <= {cell.strip() for cell in line.split("│")}


def test_in_a_pipe_each_row_is_one_line_however_long() -> None:
    rows = [{**ANSWER, "value": "x" * 500, "key": f"sensor-{number}"} for number in range(3)]
    lines = [line for line in printed(None, *rows).splitlines() if "sensor-" in line]
    assert [("x" * 500 in line, "owner" in line) for line in lines] == [(True, True)] * 3


def test_letters_of_any_language_are_printed_as_such_in_arrays_and_objects_too() -> None:
    shown = printed(None, {"map_key": ["Zürich", "北京", 7], "value": {"größe": "ü\x85"}})
    assert '["Zürich", "北京", 7]' in shown
    assert r'{"größe": "ü\x85"}' in shown


def test_what_data_holds_is_no_markup() -> None:
    shown = printed(80, {"key": "[red]x[/red]", "value": '["a"]'}, title="weather/[bold]")
    assert "[red]x[/red]" in shown
    assert "weather/[bold]" in shown
    assert '["a"]' in shown


def test_numbers_with_a_unit_in_their_name_and_parts_of_a_whole_are_put_as_people_say_it() -> None:
    assert tables.as_said(HOLDING) == {
        "key_groups": "4 of 12",
        "restored": "1,000 of 5,000",
        "lag": 2,
        "age": "3661.0 s",
        "committed": None,
        "server": "server-0",
    }
    assert tables.as_said({**HOLDING, "records_to_restore": 0})["restored"] is None


def test_no_rows_are_a_line() -> None:
    assert printed(80, title="states") == "states: none\n"


def test_the_names_in_a_title_are_written_out_too() -> None:
    for rows in ([], [ANSWER]):
        shown = printed(None, *rows, title="weather/hours: by a\nb\x1b[2J")
        assert shown.startswith(r"weather/hours: by a\nb\x1b[2J")
        assert "\x1b" not in shown
