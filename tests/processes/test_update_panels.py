"""The panels of states that are fed by updates have data in a real Prometheus, beside a feed of a real topic."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support import needs, promql
from tests.support.console_stack import APPLICATION, console_stack
from tests.support.observed import eventually
from tests.support.prometheus import Job, Prometheus
from tests.support.promql import PanelQuery

QUERIES = [query for query in promql.panel_queries() if query.needs_updates]


@dataclass
class FedRun:
    """`started`: in seconds since 1970."""

    prometheus: Prometheus
    started: float

    def has(self, query: PanelQuery) -> bool:
        """Whether a panel would show anything of the time since the start."""
        return bool(self.prometheus.ask_range(query.asked(APPLICATION), self.started, time.time(), 2))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, kafka: str) -> Iterator[FedRun]:
    needs.prometheus()
    directory = tmp_path_factory.mktemp("fed")
    with (
        console_stack(directory, kafka) as stack,
        Prometheus(directory / "prometheus", [Job("state_server", stack.pages)]) as prometheus,
    ):
        yield FedRun(prometheus, time.time())


def test_there_are_such_panels() -> None:
    assert len(QUERIES) >= 13


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
def test_a_panel_of_updates_has_data(run: FedRun, query: PanelQuery) -> None:
    eventually(lambda: run.has(query), query.name)
