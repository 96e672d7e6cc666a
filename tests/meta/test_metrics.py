"""The pages of the metrics and of the command line are what the generator makes of the catalogue, and of the words."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_the_metrics_is_current() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "generate.py"))["page"]()
    assert (ROOT / "docs" / "metrics.md").read_text() == page, "run `uv run python docs/generate.py`"


def test_the_page_of_the_command_line_is_current() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "cli_page.py"))["page"]()
    assert (ROOT / "docs" / "cli.md").read_text() == page, "run `uv run python docs/generate.py`"
