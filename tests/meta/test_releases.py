"""One Prometheus may scrape several releases of the chart: no alert and no panel takes one for the other.

Read by text here; tests/chart/test_releases.py asks Prometheus's own tool.
"""

from __future__ import annotations

from typing import Any

import pytest

from charts.dashboards.queries import RELEASE
from tests.support import promql
from tests.support.of_all import of_all

# Asks the kubelet, which knows no release: pods of two of them in one namespace have other names.
KUBELET = "KeyholeMemoryNearlyFull"
# Nothing is there that could have labels. The chart writes its own release into it.
ABSENT = " or on () absent(keyhole_exporter_view_age_seconds)"
# A heat map can't show two distributions: it adds up what is chosen.
HEAT = "sum by (le) ("


@of_all(promql.alerts(), lambda alert: alert["alert"])
def test_an_alert_goes_by_release(alert: dict[str, Any]) -> None:
    expression = " ".join(alert["expr"].split()).replace(ABSENT, "")
    if alert["alert"] == KUBELET:
        assert set(promql.loses_the_release(expression)) <= {
            "max by (namespace, pod, container)",
            "on (namespace, pod, container)",
        }
        return
    assert not promql.loses_the_release(expression)


@of_all(promql.panel_queries(), lambda query: query.name)
def test_a_panel_goes_by_release_and_shows_those_that_are_chosen(query: promql.PanelQuery) -> None:
    assert not promql.loses_the_release(query.expression.removeprefix(HEAT))
    for matchers in promql.matchers_of(query.expression):
        assert matchers.startswith(", ".join(f'{label}=~"${label}"' for label in RELEASE))


def test_only_heat_maps_put_releases_together() -> None:
    heat_maps = {
        (name, panel["title"])
        for name, dashboard in promql.dashboards().items()
        for panel in dashboard["panels"]
        if panel["type"] == "heatmap"
    }
    together = {(query.dashboard, query.panel) for query in promql.panel_queries() if query.expression.startswith(HEAT)}
    assert together == heat_maps


@pytest.mark.parametrize(
    "expression",
    [
        "sum(a)",
        "sum(a) by (namespace, keyhole_release)",
        "max by (namespace) (a)",
        "count without (keyhole_release) (a)",
        "topk(3, a)",
        "a and on (application) b",
        "a / on (namespace, application) group_left () b",
        "a unless ignoring (namespace) b",
        "a or vector(0)",
        "absent(a)",
        'label_replace(a, "namespace", "", "", "")',
        "histogram_quantile(0.9, sum by (le) (a))",
    ],
)
def test_what_drops_or_mixes_releases_is_found(expression: str) -> None:
    assert promql.loses_the_release(expression)


@pytest.mark.parametrize(
    "expression",
    [
        'max by (namespace, keyhole_release, x) (rate(sum_of_on{a="sum(b) on (c)"}[5m])) / 2',
        "sum without (server) (a) or 0 * count by (x, keyhole_release, namespace) (b)",
        "a - on (namespace, keyhole_release, x) group_left (y) b and ignoring (server) c",
    ],
)
def test_what_keeps_releases_apart_is_left_alone(expression: str) -> None:
    assert not promql.loses_the_release(expression)


@of_all(promql.alerts(), lambda alert: alert["alert"])
def test_an_alert_names_namespace_and_release_where_it_has_them(alert: dict[str, Any]) -> None:
    suffix = "{{- with $labels.namespace}}, namespace {{.}}{{end}}"
    if alert["alert"] != KUBELET:
        suffix += "{{with $labels.keyhole_release}}, release {{.}}{{end}}"
    assert alert["annotations"]["summary"].endswith(f" {suffix}")


@pytest.mark.parametrize("name", promql.dashboards())
def test_a_dashboard_lets_one_choose_releases_first_and_what_they_have_after_that(name: str) -> None:
    variables = [of for of in promql.dashboards()[name]["templating"]["list"] if of["type"] == "query"]
    assert tuple(of["name"] for of in variables[: len(RELEASE)]) == RELEASE
    for of in variables[: len(RELEASE)]:
        assert of["includeAll"]
        assert of["multi"]
        assert of["allValue"] == ".*"  # and so also what has no such label
        assert of["current"]["value"] == ["$__all"]
    for at, of in enumerate(variables):
        for label in RELEASE[:at]:
            assert f'{label}=~"${label}"' in of["definition"]
