"""The chart's alerts, and the dashboards' queries, as Prometheus's own tool reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.support import needs, promql, promtool
from tests.support.chart import JOB, KAFKA, pods, render

HERE = Path(__file__).resolve().parent
FEED = {"name": "totals", "state": "shop/totals", "topic": "orders", "key": ["customer"], "reduce": ["amount=sum"]}


@pytest.fixture(autouse=True)
def _promtool() -> None:
    needs.prometheus()


def test_each_alert_begins_when_it_should_and_only_then(tmp_path: Path) -> None:
    cases = (HERE / "alerts.yaml").read_text().replace("ALERTS]", f"{promql.CHART / 'alerts.yaml'}]", 1)
    (tmp_path / "tests.yaml").write_text(cases)
    promtool.says("test", "rules", tmp_path / "tests.yaml")


def test_every_alert_is_tested() -> None:
    cases = (HERE / "alerts.yaml").read_text()
    assert not [alert["alert"] for alert in promql.alerts() if alert["alert"] not in cases]


def test_the_memory_of_every_container_is_watched_but_of_those_for_trying_out() -> None:
    """Each by its name, and where others have a container of that name by that of its pod."""
    (watching,) = [alert["expr"] for alert in promql.alerts() if alert["alert"] == "KeyholeMemoryNearlyFull"]
    selectors = [
        dict(re.findall(r'(container|pod)=~?"([^"]*)"', labels))
        for labels in re.findall(r"working_set_bytes[{]([^}]*)[}]", watching)
    ]
    made = render(KAFKA, {"jobs": [JOB], "feeds": [FEED], "replica.enabled": True, "stateServers.enabled": True})
    unwatched = set()
    for of in pods(made):
        name = of.of.partition("/")[2].removesuffix("/executor-pod.yaml") + "-5d8f7c-x2x9z"
        for container in of.containers:
            found = {"container": container["name"], "pod": name}
            if not any(all(re.fullmatch(like, found[of]) for of, like in selector.items()) for selector in selectors):
                unwatched.add(container["name"])
    assert unwatched == {"kafka", "read-back"}


def test_a_panel_of_pods_that_have_ended_has_data_where_one_has(tmp_path: Path) -> None:
    labels = '{container="executor", cause="memory"}'
    queries = [query.asked("shop") for query in promql.panel_queries() if query.needs_pods]
    assert queries
    case = {
        "interval": "1m",
        "input_series": [{"series": f"keyhole_exporter_ended_containers_total{labels}", "values": "0 0 1 1 1"}],
        "promql_expr_test": [
            {"expr": query, "eval_time": "4m", "exp_samples": [{"labels": labels, "value": 1}]} for query in queries
        ],
    }
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"tests": [case]}))
    promtool.says("test", "rules", tmp_path / "tests.yaml")


def test_the_number_of_silent_processes_is_none_where_the_exporter_is_gone(tmp_path: Path) -> None:
    (query,) = [query.asked("") for query in promql.panel_queries() if query.panel == "Processes that don't answer"]
    up = "keyhole_exporter_up"
    case = {
        "interval": "15s",
        "input_series": [
            {"series": f'{up}{{component="job", target="a:1"}}', "values": "1 1 1 1 0 0 0 0 stale"},
            {"series": f'{up}{{component="job", target="b:1"}}', "values": "1x7 stale"},
        ],
        "promql_expr_test": [
            {"expr": query, "eval_time": at, "exp_samples": [{"labels": "{}", "value": number} for number in numbers]}
            for at, numbers in (("30s", [0]), ("90s", [1]), ("4m", []))
        ],
    }
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"tests": [case]}))
    promtool.says("test", "rules", tmp_path / "tests.yaml")


def test_every_query_of_a_panel_is_promql(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": query.expression.replace("$__rate_interval", "1m")}
        for number, query in enumerate(promql.panel_queries())
    ]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool.says("check", "rules", tmp_path / "panels.yaml")
