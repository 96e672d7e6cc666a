"""What lists all jobs is made of their descriptions, and is current; nothing that is written by hand lists them."""

from __future__ import annotations

import os
import runpy
from collections.abc import Iterator
from pathlib import Path

from keyhole.demo.described_jobs import job_names

ROOT = Path(__file__).resolve().parents[2]
LISTS = runpy.run_path(str(ROOT / "docs" / "job_lists.py"))
STALE = "run `uv run python docs/generate.py`"
MADE = {"charts/keyhole/ci/every-job-values.yaml", "docs/cli.md", "docs/demo.md"}
# What has been: changes, and what was measured of the jobs that there were.
RECORDS = {"CHANGELOG.md", "docs/benchmarks.md", "tests/e2e/report.md"}
# Has another program to compare each with, which somebody wrote: a job needs none.
COMPARED = {"benchmarks/jobs.py"}
_OTHERS = {"node_modules", "target", "site", "dist", "build", "__pycache__"}


def written_here() -> Iterator[tuple[str, str]]:
    """The files of the repository that are text: path, content."""
    for folder, below, names in os.walk(ROOT):
        below[:] = [name for name in below if name not in _OTHERS and (name == ".ci" or not name.startswith("."))]
        for name in names:
            path = Path(folder, name)
            try:
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def test_the_table_of_the_jobs_is_current() -> None:
    page = (ROOT / "docs" / "demo.md").read_text()
    assert page == LISTS["demo_page"](page), STALE


def test_the_chart_s_scenario_of_every_job_is_current() -> None:
    assert (ROOT / "charts" / "keyhole" / "ci" / "every-job-values.yaml").read_text() == LISTS["scenario"](), STALE


def test_only_what_is_made_of_the_descriptions_names_all_jobs() -> None:
    named = {path for path, text in written_here() if all(name in text.replace("-", "_") for name in job_names())}
    assert named == MADE | RECORDS | COMPARED
