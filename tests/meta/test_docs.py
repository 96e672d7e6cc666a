"""What the documentation says exists, exists; and what exists is documented."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import ServiceDescriptor

from keyhole import config
from keyhole.demo.described_jobs import described, job_names
from keyhole.encoding.reducers import REDUCERS
from keyhole.protocol.failpoints import Step
from keyhole.spark import queryable
from keyhole.v1 import query_pb2, state_server_pb2, stats_pb2
from tests.processes import test_kill_driver, test_kill_server
from tests.support.of_all import of_all

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "jobs/**/*.md", "services/**/*.md")
    for page in ROOT.glob(pattern)
    if "node_modules" not in page.parts
)
SERVICES = [
    service
    for module in (query_pb2, state_server_pb2, stats_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
# A sign that would begin a list at the start of a line stays at the end of the one before.
_COLUMNS = 105
KINDS = (
    config.CliConfig,
    config.StateServerConfig,
    config.ClientProxyConfig,
    config.MetricsExporterConfig,
    config.JobConfig,
    config.KafkaConfig,
)
OF_JOBS: dict[str, tuple[type[Any], ...]] = {f"jobs/{name}/README.md": described(name).kinds for name in job_names()}


def _settings(*kinds: type[Any]) -> dict[str, str]:
    """By the name of each, the end of it: what several processes have is there once, without the name's beginning."""
    return {
        kind.PREFIX + item.name.upper(): f"..._{item.name.upper()}"
        for kind in kinds
        for item in dataclasses.fields(kind)
    }


def test_every_setting_is_in_the_configuration_page_and_those_of_one_job_are_in_its_readme() -> None:
    page, jobs = ((ROOT / "docs" / name).read_text() for name in ("configuration.md", "demo.md"))
    names = _settings(*KINDS)
    assert not [name for name, end in names.items() if f"`{name}`" not in page and f"| `{end}`" not in page]
    of_jobs = {readme: _settings(*kinds) for readme, kinds in OF_JOBS.items()}
    known = {config.PROXY_VARIABLE, *names, *(name for of in of_jobs.values() for name in of)}
    assert set(re.findall(r"`(KEYHOLE_[A-Z_]+)`", page)) <= known
    for readme, of_job in of_jobs.items():
        own = (ROOT / readme).read_text()
        assert f"(../{readme})" in jobs
        missing = [name for name, end in of_job.items() if f"| `{name}`" not in own and f"| `{end}`" not in page]
        assert not missing, readme
        assert set(re.findall(r"^\| `(KEYHOLE_[A-Z_]+)`", own, flags=re.MULTILINE)) <= set(of_job), readme


@of_all(PAGES, lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not broken


@of_all(PAGES, lambda page: str(page.relative_to(ROOT)))
def test_text_is_wrapped_at_100_columns(page: Path) -> None:
    if page.name in ("metrics.md", "errors.md", "cli.md", "grpc.md"):
        return  # are generated, a line for each metric, error and option
    text = re.sub(r"^ *(```+).*?^ *\1", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    # Of a table a row is a line; an indented line may be code, and a code span, or a link, is not broken.
    lines = [line for line in text.splitlines() if not re.match(r" {4}| *(\||#|!\[)", line)]
    assert [line for line in lines if len(re.sub(r"`[^`]*`|\]\([^)]*\)|<[^>]*>", "", line)) > _COLUMNS] == []


def _odd_rows(page: str) -> list[int]:
    """The numbers of lines that are no row of the table that they stand in: two rows on one line, or half of one. What
    a row has beyond its table's head is not shown.
    """
    found, cells, fence = [], 0, ""
    for number, line in enumerate(page.splitlines(), start=1):
        opened = re.match(r" *(`{3,})", line)
        if opened and (not fence or opened[1] == fence):
            fence = "" if fence else opened[1]
        if fence or not line.startswith("|"):
            cells = 0
            continue
        in_row = len(re.findall(r"(?<!\\)\|", line)) - 1
        cells = cells or in_row
        if in_row != cells:
            found.append(number)
    return found


@of_all(PAGES, lambda page: str(page.relative_to(ROOT)))
def test_a_row_of_a_table_has_as_many_cells_as_its_head(page: Path) -> None:
    assert _odd_rows(page.read_text()) == []


def test_two_rows_on_one_line_are_found_and_other_bars_are_not() -> None:
    table = "| a | b |\n|---|---|\n| 1 | `x \\| y` |\n| 2 | | | 3 | 4 |\n| 5 |\n"
    assert _odd_rows(f"{table}\n| a |\n|---|\n| 1 |\n\n```\n{table}```\n") == [4, 5]


def _glued_lines(page: str) -> list[int]:
    """The numbers of lines that begin at the margin right behind an item of a list, whose last line they become."""
    found, fence, in_item = [], "", False
    for number, line in enumerate(page.splitlines(), start=1):
        opened = re.match(r" *(`{3,})", line)
        if opened and (not fence or opened[1] == fence):
            fence = "" if fence else opened[1]
        if in_item and not fence and re.match(r"[^ #|`-]", line) and not re.match(r"[*] |\d+\. ", line):
            found.append(number)
        begins = re.match(r" *([-*]|\d+\.) ", line) is not None
        in_item = not fence and (begins or (in_item and line.startswith(" ")))
    return found


@of_all(PAGES, lambda page: str(page.relative_to(ROOT)))
def test_no_paragraph_is_glued_to_the_list_above_it(page: Path) -> None:
    assert _glued_lines(page.read_text()) == []


def test_a_paragraph_that_is_glued_to_a_list_is_found_and_what_belongs_to_it_is_not() -> None:
    apart = "- one\n  of it\n- two\n\nText.\n\n1. one\n2. two\n   of it\n"
    assert _glued_lines(f"{apart}Text.\n\n```\n- code\nmore\n```\n") == [10]


@of_all(PAGES, lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"`(tests/[a-z_/]+\.py)`", page.read_text()))
    assert not [path for path in sorted(named) if not (ROOT / path).exists()]


@of_all(PAGES, lambda page: str(page.relative_to(ROOT)))
def test_every_test_function_that_is_named_exists(page: Path) -> None:
    text = page.read_text()
    beside = set(re.findall(r"`(tests/[a-z_/]+\.py)`: `(test_\w+)`", text))
    assert not [(path, name) for path, name in sorted(beside) if f"def {name}(" not in (ROOT / path).read_text()]
    files = {ROOT / path for path in re.findall(r"`(tests/[a-z_/]+\.py)`", text)}
    defined = set(re.findall(r"def (test_\w+)\(", "".join(path.read_text() for path in files)))
    assert set(re.findall(r"`(test_\w+)`", text)) <= defined


def test_every_row_of_the_guarantees_names_its_test() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| what fails")]
    assert rows
    assert not [row for row in rows if "`tests/" not in row]


@pytest.mark.parametrize("described", SERVICES, ids=lambda described: described.full_name)
def test_every_call_of_a_service_is_in_the_architecture_page(described: ServiceDescriptor) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith(f"| `{described.name}.")]
    listed = {name for row in rows for name in re.findall(r"`(?:\w+\.)?(\w+)`", row.split("|")[1])}
    assert listed == {method.name for method in described.methods}


def test_the_default_ports_are_in_the_architecture_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert f"| client proxy | {config.DEFAULT_PROXY_PORT} |" in page
    assert f"| a proxy's reads over HTTP | {config.DEFAULT_HTTP_PORT} by custom" in page
    assert f"| metrics exporter | {config.DEFAULT_EXPORTER_PORT} |" in page
    assert f"| state server | {config.DEFAULT_STATE_SERVER_PORT} |" in page


def test_every_reducer_is_in_the_table_of_sparks_page_and_in_the_list_of_reducing() -> None:
    page = (ROOT / "docs" / "spark-reference.md").read_text()
    table = page.partition("| reducer | takes |")[2].partition("\n\n")[0]
    in_table = re.findall(r"^\| ([^|]+) \|", table, flags=re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(in_table))) == set(REDUCERS)
    listed = set(re.findall(r'"(\w+)(?:\(field\))?"', queryable.reducing.__doc__ or ""))
    assert not set(REDUCERS) - listed


def test_every_step_of_an_epoch_is_killed_at() -> None:
    """Of a state of sums, where what counts twice shows."""
    assert {*test_kill_server.STEPS, *test_kill_driver.STEPS} == set(Step)
