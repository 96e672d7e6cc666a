"""How long ago an answer's epoch was committed, and its age, have one name each for people, and one for programs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from charts.dashboards.files import DASHBOARDS
from charts.dashboards.model import Kind
from keyhole.client.mirrors import _MirrorReads
from keyhole.metrics.catalogue import CATALOGUE
from keyhole.terminal.tables import TIMES

ROOT = Path(__file__).resolve().parents[2]
SHOWN_TO_PROGRAMS = ("src/keyhole/cli", "src/keyhole/client", "services/client_proxy/http")
NAMES = {"commit_age_seconds", "staleness_seconds"}
BOUNDS = {"max_staleness_seconds"}
OTHERS = {
    "age_seconds": "of a mirror by an earlier name, and of a watch that can't go on: how long it was away",
}
_OF_TIMES = re.compile(r"[a-z_]*(?:age|staleness|committed|as_of)_seconds")


def called() -> Iterator[tuple[str, str, str]]:
    """By metric, what each panel and each column of a table is called that shows it, and what the panel says of it."""
    for dashboard in DASHBOARDS:
        for panel in (panel for row in dashboard.rows for panel in row.panels):
            for query in panel.queries:
                title = query.legend if panel.kind is Kind.TABLE else panel.title
                for metric in re.findall(r"keyhole_\w+", query.expression):
                    yield metric, title, panel.description


@pytest.mark.parametrize(
    ("ending", "word", "others"),
    [("_commit_age_seconds", "commit", "age|old|stale"), ("_staleness_seconds", "age", "stale|commit")],
    ids=["committed", "age"],
)
def test_dashboards_call_a_time_by_its_word_and_not_by_the_others(ending: str, word: str, others: str) -> None:
    titles = [title for metric, title, _ in called() if metric.endswith(ending)]
    assert titles
    wrong = [
        of for of in titles if not re.search(rf"\b{word}\b", of.lower()) or re.search(rf"\b({others})", of.lower())
    ]
    assert wrong == []


def test_programs_find_a_time_under_one_name_in_every_row_answer_and_metric() -> None:
    found: dict[str, set[str]] = {}
    for folder in SHOWN_TO_PROGRAMS:
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                name = node.value if isinstance(node, ast.Constant) else getattr(node, "name", None)
                if isinstance(name, str) and _OF_TIMES.fullmatch(name):
                    found.setdefault(name, set()).add(file.name)
    assert set(found) >= NAMES
    assert {name: files for name, files in found.items() if name not in NAMES | BOUNDS | set(OTHERS)} == {}
    ends = {name for metric in CATALOGUE for name in NAMES if metric.name.endswith(f"_{name}")}
    assert ends == NAMES == set(TIMES)


def test_a_mirror_says_its_age_by_the_name_that_it_has_elsewhere_and_by_its_earlier_one() -> None:
    assert {"staleness_seconds", "age_seconds"} <= set(vars(_MirrorReads))


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_page_of_reads_has_one_row_for_each_with_both_names(name: str) -> None:
    text = (ROOT / "docs" / "reads-reference.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| ") and f"`{name}`" in line]
    assert row.startswith(f"| {TIMES[name]} (")
