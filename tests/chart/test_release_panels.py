"""Each query of a panel shows each release in one Prometheus by itself, and none that isn't chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from charts.dashboards.queries import RELEASE
from keyhole.metrics.catalogue import CATALOGUE
from keyhole.metrics.metric import Metric, MetricType
from tests.support import needs, promql
from tests.support.promtool import Labels, agrees, expected, selector, series

HEALTHY = dict(zip(RELEASE, ("shop", "keyhole"), strict=True))
ELSEWHERE = dict(zip(RELEASE, ("bank", "keyhole"), strict=True))
BESIDE = dict(zip(RELEASE, ("shop", "second"), strict=True))


@pytest.fixture(autouse=True)
def _promtool() -> None:
    needs.prometheus()


RELEASES = (HEALTHY, ELSEWHERE, BESIDE)


def test_every_query_of_a_panel_has_data_of_each_release_and_of_those_that_are_chosen(tmp_path: Path) -> None:
    choices: list[tuple[Labels, tuple[Labels, ...]]] = [
        ({}, RELEASES),
        ({"namespace": "shop"}, (HEALTHY, BESIDE)),
        ({"keyhole_release": "keyhole"}, (HEALTHY, ELSEWHERE)),
        (BESIDE, (BESIDE,)),
    ]
    queries = {
        f"group by ({', '.join(RELEASE)}) ({query.asked('app', window='5m', **chosen)})": {
            selector(release): 1.0 for release in shown
        }
        for query in _panels()
        for chosen, shown in choices
    }
    agrees(tmp_path, [_shows(queries, *RELEASES)])


def test_every_query_of_a_panel_has_data_where_nothing_says_which_release_it_is(tmp_path: Path) -> None:
    queries = {f"group ({query.asked('app', window='5m')})": {"{}": 1.0} for query in promql.panel_queries()}
    agrees(tmp_path, [_shows(queries, {})])


def test_a_panel_shows_the_same_of_a_release_alone_and_beside_others(tmp_path: Path) -> None:
    queries = {}
    for query in _panels():
        alone, beside = query.asked("app", window="5m", **BESIDE), query.asked("app", window="5m")
        queries[f"count(({alone}) == ({beside})) - count({alone})"] = {"{}": 0.0}
    agrees(tmp_path, [_shows(queries, *RELEASES)])


def _shows(queries: Mapping[str, Mapping[str, float]], *releases: Labels) -> dict[str, Any]:
    expectations = [expected(query, samples, "30m") for query, samples in queries.items()]
    return {"interval": "1m", "input_series": list(_everything(*releases)), "promql_expr_test": expectations}


def _panels() -> list[promql.PanelQuery]:
    """All queries but that of the heat map, which shows what is chosen together."""
    return [query for query in promql.panel_queries() if not query.expression.startswith("sum by (le) (")]


def _everything(*releases: Labels) -> Iterator[dict[str, str]]:
    """Each metric of the catalogue, of each release: the second one has other figures than the first, and so on."""
    for number, release in enumerate(releases, 1):
        for metric in CATALOGUE:
            yield from _of(metric, {**_own(metric), **release}, number)


def _own(metric: Metric) -> Labels:
    given = {"application": "app", "cause": "memory", "component": "job", "phase": "stage", "role": "owner"}
    return {label: given.get(label, "x") for label in metric.labels}


def _of(metric: Metric, labels: Labels, number: int) -> Iterator[dict[str, str]]:
    if metric.type is MetricType.GAUGE:
        yield series(metric.name, labels, f"{number}x60")
    elif metric.type is MetricType.COUNTER:
        yield series(metric.name, labels, f"0+{60 * number}x60")
    else:
        last = len(metric.buckets)
        for at, bound in enumerate([*(f"{bound:g}" for bound in metric.buckets), "+Inf"]):
            grows = 60 * (at + 1) * number if at < last else 60 * (last + 7 * number)
            yield series(f"{metric.name}_bucket", {**labels, "le": bound}, f"0+{grows}x60")
        yield series(f"{metric.name}_sum", labels, f"0+{90 * number}x60")
        yield series(f"{metric.name}_count", labels, f"0+{60 * (last + 7 * number * number)}x60")
