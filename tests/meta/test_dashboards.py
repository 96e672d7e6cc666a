"""Dashboards and alerts are made of the catalogue's metrics, and are documented. None of it needs Prometheus."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from charts.dashboards.files import DIRECTORY, files
from keyhole import errors
from keyhole.metrics.catalogue import CATALOGUE
from tests.support import promql
from tests.support.of_all import of_all
from tests.support.promql import PanelQuery

ROOT = Path(__file__).resolve().parents[2]
ALERTS = promql.alerts()
# Asks the kubelet, which knows what a container's limit is and all that counts against it.
KUBELET = "KeyholeMemoryNearlyFull"


def test_the_dashboards_are_what_the_generator_makes() -> None:
    committed = {file.name: file.read_text() for file in DIRECTORY.glob("*.json")}
    assert committed == files(), "run `uv run python -m charts.dashboards`"


@of_all(promql.panel_queries(), lambda query: query.name)
def test_a_panel_asks_for_metrics_and_labels_of_the_catalogue(query: PanelQuery) -> None:
    assert list(promql.metrics_of(query.expression))
    assert not promql.beyond_the_catalogue(query.expression)


@of_all(ALERTS, lambda alert: alert["alert"])
def test_an_alert_asks_for_metrics_and_labels_of_the_catalogue(alert: dict[str, Any]) -> None:
    if alert["alert"] == KUBELET:
        assert "keyhole_" not in alert["expr"]
        return
    assert list(promql.metrics_of(alert["expr"]))
    assert not promql.beyond_the_catalogue(alert["expr"])


def test_a_wrong_name_a_wrong_label_and_a_histogram_without_its_part_would_be_found() -> None:
    assert promql.beyond_the_catalogue("rate(keyhole_made_up_total[5m])")
    assert promql.beyond_the_catalogue('keyhole_state_server_ready{topic="a"}')
    assert promql.beyond_the_catalogue("max by (server, topic) (keyhole_state_server_ready)")
    assert promql.beyond_the_catalogue("keyhole_client_proxy_lookup_seconds")


def test_every_metric_of_the_catalogue_is_on_a_dashboard() -> None:
    shown = {metric.name for query in promql.panel_queries() for metric in promql.metrics_of(query.expression)}
    assert not sorted({metric.name for metric in CATALOGUE} - shown)


@of_all(promql.dashboards())
def test_every_panel_says_what_it_shows_and_has_a_place_and_a_number_of_its_own(name: str) -> None:
    panels = promql.dashboards()[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] == "row" or panel["description"].endswith("."), panel["title"]
        of = panel["gridPos"]
        cells = {(x, y) for x in range(of["x"], of["x"] + of["w"]) for y in range(of["y"], of["y"] + of["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


@of_all(promql.dashboards())
def test_a_single_number_is_what_there_is_now_not_the_last_of_an_hour(name: str) -> None:
    targets = [
        of for panel in promql.dashboards()[name]["panels"] if panel["type"] == "stat" for of in panel["targets"]
    ]
    assert [of["expr"] for of in targets if of["range"] or not of["instant"]] == []


@of_all(promql.dashboards())
def test_every_variable_that_a_query_uses_can_be_chosen(name: str) -> None:
    dashboard = promql.dashboards()[name]
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = {
        variable
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
        for variable in re.findall(r"\$(\w+)", target["expr"])
    }
    assert used - {"__rate_interval"} <= variables
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in dashboard["panels"] if "targets" in panel)


@of_all(ALERTS, lambda alert: alert["alert"])
def test_an_alert_says_how_bad_it_is_what_a_reader_sees_and_where_to_read_on(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning")
    said = alert["annotations"]
    assert said["summary"]
    assert re.search(r"\b[Rr]ead(ers?|ing|s)?\b", said["description"])
    page, _, anchor = said["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert alert["alert"] in headings
    assert anchor == alert["alert"].lower()


def test_every_alert_in_the_runbook_exists() -> None:
    headings = re.findall(r"^#+ (Keyhole[A-Z]\w+)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    assert headings == [alert["alert"] for alert in ALERTS]


def test_what_only_a_caller_can_put_right_is_no_read_error() -> None:
    (alert,) = [alert for alert in ALERTS if alert["alert"] == "KeyholeReadErrorRate"]
    left_out = re.search(r'reason!~"([^"]*)"', alert["expr"])
    assert left_out is not None
    request_errors = {kind.reason for kind in _all_below(errors.RequestError)}
    assert set(left_out[1].split("|")) == request_errors


def _all_below(kind: type[errors.KeyholeError]) -> list[type[errors.KeyholeError]]:
    return [one for child in kind.__subclasses__() for one in (child, *_all_below(child))]


def test_the_alerts_are_a_file_of_prometheus_without_anything_that_helm_would_replace() -> None:
    text = (promql.CHART / "alerts.yaml").read_text()
    made = {action.split("|")[0].strip("- ") for action in re.findall(r"\{\{(.*?)\}\}", text)}
    assert made <= {
        "$value",
        ".",
        "end",
        *(f"{w}{of}" for of in re.findall(r"\$labels\.\w+", text) for w in ("", "with ")),
    }
