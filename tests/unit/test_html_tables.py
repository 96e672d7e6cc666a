"""What notebooks show of answers, entries and states."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

from keyhole.encoding.row import row_class
from keyhole.model.html_tables import MOST_ENTRIES, state_table
from keyhole.model.read import Answer, Entries, Entry, Role, Source
from tests.support.readings import descriptor

_NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)


@dataclass
class Reading:
    celsius: float


def _source(*, unconfirmed: bool = False) -> Source:
    return Source("server-0", Role.OWNER, 7, _NOON, None, 1, 1, unconfirmed=unconfirmed)


def _cells(text: str) -> list[str]:
    """The texts of a table, and that each tag is closed."""
    found: list[str] = []
    opened: list[str] = []

    class Cells(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            assert tag in ("table", "caption", "tr", "th", "td")
            opened.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert opened.pop() == tag

        def handle_data(self, data: str) -> None:
            found.append(data)

    parser = Cells()
    parser.feed(text)
    parser.close()
    assert opened == []
    return found


def test_an_answer_shows_its_fields_and_who_gave_it() -> None:
    value = row_class([("celsius", float), ("max(t)", str)])(21.5, "<script>alert(1)</script>")
    assert _cells(Answer(True, value, _source())._repr_html_()) == [
        "epoch 7, committed 2026-11-27 12:00:00 UTC, by owner server-0",
        "celsius",
        "21.5",
        "max(t)",
        "<script>alert(1)</script>",
    ]
    assert "unconfirmed" in Answer(True, Reading(1.0), _source(unconfirmed=True))._repr_html_()


def test_an_absent_key_is_said_to_be_absent() -> None:
    assert "the key is absent" in _cells(Answer(False, None, _source())._repr_html_())


def test_entries_have_a_line_each_and_the_rest_is_counted() -> None:
    entries = Entries(tuple(Entry(number, Reading(float(number))) for number in range(MOST_ENTRIES + 3)), _source())
    cells = _cells(entries._repr_html_())
    assert cells[0].endswith("; 3 more entries")
    assert cells[1:5] == ["map key", "celsius", "0", "0.0"]
    assert len(cells) == 3 + 2 * MOST_ENTRIES
    assert _cells(Entries((), _source())._repr_html_())[1:] == ["map key"]


def test_a_long_value_is_cut() -> None:
    longest = max(_cells(Answer(True, {"text": "x" * 10_000}, _source())._repr_html_()), key=len)
    assert len(longest) == 200
    assert longest.endswith("…")


def test_a_state_shows_its_columns_and_one_that_is_not_known_its_name() -> None:
    assert _cells(state_table("weather/readings", descriptor())) == [
        "value state weather/readings, 16 key groups",
        "name",
        "type",
        "key",
        "sensor",
        "string",
        "value",
        "celsius",
        "double",
        "value",
        "count",
        "bigint",
    ]
    assert _cells(state_table("weather/<readings>", None)) == ["state weather/<readings>; it has not been read yet"]
