"""What a person sees of the jars that are fetched."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from keyhole.demo import fetching
from keyhole.demo.fetching import fetch_jars
from keyhole.local.jars import JarSet, Progress


def shown(monkeypatch: pytest.MonkeyPatch, steps: list[tuple[int, int]], terminal: bool) -> str:
    def fetch(which: JarSet, cache: Path, show: Progress) -> list[Path]:
        for step in steps:
            show(*step)
        return []

    monkeypatch.setattr(fetching, "fetch", fetch)
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=80)
    fetch_jars(console, {}, JarSet.KAFKA, JarSet.SPARK_KAFKA)
    return file.getvalue()


def test_of_what_is_there_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, [], terminal=True) == shown(monkeypatch, [], terminal=False) == ""


def test_without_a_terminal_a_line_says_how_much_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing has come for a while.
    steps = [(0, 9_900_000), (0, 9_900_000), (5_000_000, 9_900_000), (9_900_000, 9_900_000)]
    printed = "fetching kafka jars: 9.9 MB\nfetching spark-kafka jars: 9.9 MB\n"
    assert shown(monkeypatch, steps, terminal=False) == printed


def test_in_a_terminal_a_bar_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    output = shown(monkeypatch, [(0, 9_900_000), (9_900_000, 9_900_000)], terminal=True)
    assert "fetching kafka jars" in output
    assert "9.9/9.9 MB" in output
