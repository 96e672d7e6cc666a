"""Two releases in one Prometheus, whose servers and applications have the same names: neither hides the other.

Prometheus's own tool reads the rules. tests/meta/test_releases.py reads their text; the panels are in
test_release_panels.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.dashboards.queries import RELEASE
from tests.support import needs, promql
from tests.support.broken_releases import CASES, EXPORTER, STATE, Case
from tests.support.chart import CHART, OPERATOR, SMALL, one, render
from tests.support.promtool import Labels, agrees, expected, selector, series

HEALTHY = dict(zip(RELEASE, ("shop", "keyhole"), strict=True))
ELSEWHERE = dict(zip(RELEASE, ("bank", "keyhole"), strict=True))
BESIDE = dict(zip(RELEASE, ("shop", "second"), strict=True))
OTHERS = pytest.mark.parametrize("other", [ELSEWHERE, BESIDE], ids=["another namespace", "the same namespace"])
KUBELET = "KeyholeMemoryNearlyFull"


@pytest.fixture(autouse=True)
def _promtool() -> None:
    needs.prometheus()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert} of {case.series[-1].metric}")
def test_an_alert_fires_for_the_broken_release_alone_and_names_it(case: Case, tmp_path: Path) -> None:
    cases = [
        _when(case.alert, case.minutes, _both(case, other), {**case.labels, **other}) for other in (ELSEWHERE, BESIDE)
    ]
    agrees(tmp_path, cases, _rule(tmp_path, case.alert))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert} of {case.series[-1].metric}")
def test_an_alert_fires_the_same_where_nothing_says_which_release_it_is(case: Case, tmp_path: Path) -> None:
    samples = [series(shown.metric, shown.labels, shown.broken) for shown in case.series]
    agrees(tmp_path, [_when(case.alert, case.minutes, samples, case.labels)], _rule(tmp_path, case.alert))


def test_there_is_a_case_of_each_alert_but_the_kubelets() -> None:
    assert {case.alert for case in CASES} == {alert["alert"] for alert in promql.alerts()} - {KUBELET}


def test_a_container_near_its_limit_is_its_namespaces(tmp_path: Path) -> None:
    """The kubelet knows no release. Pods of two of them in one namespace have other names."""
    samples = []
    for namespace, used in (("shop", 100), ("bank", 1000)):
        of = {"namespace": namespace, "pod": "keyhole-state-server-0", "container": "state-server"}
        samples.append(series("container_memory_working_set_bytes", of, f"{used}x40"))
        samples.append(series("container_spec_memory_limit_bytes", of, "1024x40"))
    agrees(tmp_path, [_when(KUBELET, 20, samples, of)], CHART / "alerts.yaml")


@pytest.mark.parametrize(
    ("release", "where"),
    [
        (ELSEWHERE, ", namespace bank, release keyhole"),
        ({"namespace": "bank"}, ", namespace bank"),
        ({"keyhole_release": "second"}, ", release second"),
        ({}, ""),
    ],
)
def test_what_an_alert_says_names_the_release_as_far_as_it_is_known(
    release: Labels, where: str, tmp_path: Path
) -> None:
    [rule] = [alert for alert in promql.alerts() if alert["alert"] == "KeyholeKeyGroupsWithoutOwner"]
    said = {**rule["annotations"], "summary": f"4 key groups of app/s have no owner{where}"}
    case = {
        "interval": "1m",
        "input_series": [series("keyhole_cluster_unowned_key_groups", {**STATE, **release}, "4x40")],
        "alert_rule_test": [
            {
                "eval_time": "20m",
                "alertname": rule["alert"],
                "exp_alerts": [{"exp_labels": {**rule["labels"], **STATE, **release}, "exp_annotations": said}],
            }
        ],
    }
    agrees(tmp_path, [case], CHART / "alerts.yaml")


@OTHERS
def test_a_release_without_any_exporter_is_told_by_its_own_rules(other: Labels, tmp_path: Path) -> None:
    """It was scaled to zero, or never came up: no target says so."""
    values = CHART / "ci" / "monitoring-values.yaml"
    name = other["keyhole_release"]
    objects = render(SMALL, values, release=name, namespace=other["namespace"], api=[OPERATOR])
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump(one(objects, "PrometheusRule", name)["spec"]))
    well = series("keyhole_exporter_view_age_seconds", {**EXPORTER, **HEALTHY}, "1x40")
    itself = series("keyhole_exporter_view_age_seconds", {**EXPORTER, **other}, "1x40")
    cases = [_when("KeyholeExporterStale", 20, [well], other), _when("KeyholeExporterStale", 20, [well, itself])]
    agrees(tmp_path, cases, rules)


def test_a_release_that_was_uninstalled_is_no_alert_of_another_ones(tmp_path: Path) -> None:
    samples = [
        series(metric, {**EXPORTER, **release}, values)
        for metric in ("keyhole_exporter_view_age_seconds", "up")
        for release, values in ((HEALTHY, "1x40"), (ELSEWHERE, "1x5 stale"))
    ]
    agrees(tmp_path, [_when("KeyholeExporterStale", 20, samples)], CHART / "alerts.yaml")


def test_a_silent_process_is_no_exporter_as_another_releases_exporter_is_of_a_job_of_that_name(tmp_path: Path) -> None:
    samples = [
        series("keyhole_exporter_view_age_seconds", {**EXPORTER, **HEALTHY}, "1x40"),
        series("up", {**EXPORTER, **ELSEWHERE}, "0x40"),
    ]
    agrees(tmp_path, [_when("KeyholeExporterStale", 20, samples)], CHART / "alerts.yaml")


def _both(case: Case, other: Labels) -> list[dict[str, str]]:
    return [
        series(shown.metric, {**shown.labels, **release}, values)
        for shown in case.series
        for release, values in ((HEALTHY, shown.healthy), (other, shown.broken))
    ]


def _when(alert: str, minutes: int, given: list[dict[str, str]], *firing: Labels) -> dict[str, Any]:
    """That so many minutes after the beginning the alert fires with these labels, and with no others."""
    [rule] = [rule for rule in promql.alerts() if rule["alert"] == alert]
    own = {"alertname": alert, "alertstate": "firing", **rule["labels"]}
    asked = f'ALERTS{{alertname="{alert}", alertstate="firing"}}'
    samples = {f"ALERTS{selector({**own, **labels})}": 1.0 for labels in firing}
    return {
        "interval": "1m",
        "input_series": given,
        "promql_expr_test": [expected(asked, samples, f"{minutes}m")],
    }


def _rule(folder: Path, alert: str) -> Path:
    """A file with one of the chart's rules: all of them, evaluated for half an hour, take seconds."""
    file = folder / "rules.yaml"
    rules = [rule for rule in promql.alerts() if rule["alert"] == alert]
    file.write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": rules}]}))
    return file
