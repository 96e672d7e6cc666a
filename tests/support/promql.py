"""What queries ask for, as far as it can be told without Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from keyhole.metrics.catalogue import BY_NAME
from keyhole.metrics.metric import Metric, MetricType

CHART = Path(__file__).resolve().parents[2] / "charts" / "keyhole"

# What only Spark and its tasks tell, and what a server refuses to a reader: a run without either has none of it.
_OF_SPARK_RUNS = (
    "keyhole_spark_",
    "keyhole_kafka_source_lag_",
    "keyhole_job_checked_",
    "keyhole_job_rejected_",
    "keyhole_state_server_failed_reads_",
)
# Of a state that is fed by updates: tests/processes/test_update_panels.py has one.
_OF_UPDATES = ("_updates", "_update_seconds", "_uncommitted_", "_stopped_key_groups", "_waiting_key_groups")
_RATE_WINDOW = "10s"

_SERIES = re.compile(r"\b(keyhole_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
_PUT_TOGETHER = re.compile(r"\b(?:by|on|group_left|group_right|without|ignoring)\s*\(([^)]*)\)")
_SUFFIXES = ("_bucket", "_sum", "_count")


class PanelQuery(NamedTuple):
    """One query of a panel of a committed dashboard. `instant`: it is asked for one moment, not for a range."""

    dashboard: str
    panel: str
    expression: str
    instant: bool

    @property
    def name(self) -> str:
        return f"{self.dashboard}: {self.panel}: {self.expression}"

    @property
    def needs_spark(self) -> bool:
        """Whether only a run with Spark, and with reads that its servers refuse, has data for it."""
        return any(name in self.expression for name in _OF_SPARK_RUNS)

    @property
    def needs_updates(self) -> bool:
        """Whether only a state that is fed by updates has data for it."""
        return any(name in self.expression for name in _OF_UPDATES)

    @property
    def needs_pods(self) -> bool:
        """Whether only pods on Kubernetes that have ended give it data."""
        return "keyhole_exporter_ended_containers_total" in self.expression

    def asked(self, application: str) -> str:
        """As Grafana asks, with one application chosen and all of the rest."""
        expression = self.expression.replace("$__rate_interval", _RATE_WINDOW).replace("$application", application)
        for variable in ("state", "server", "proxy"):
            expression = expression.replace(f"${variable}", ".*")
        return expression


def dashboards() -> dict[str, dict[str, Any]]:
    """The committed ones, by the name of their file."""
    return {file.name: json.loads(file.read_text()) for file in sorted((CHART / "dashboards").glob("*.json"))}


def variables(name: str) -> dict[str, tuple[str, str]]:
    """What can be chosen on a dashboard: the series and the label that a variable takes its values from."""
    found = {}
    for variable in dashboards()[name]["templating"]["list"]:
        if variable["type"] == "query":
            series, _, label = variable["definition"].removeprefix("label_values(").removesuffix(")").rpartition(", ")
            found[variable["name"]] = (series, label)
    return found


def panel_queries() -> list[PanelQuery]:
    """All of them."""
    return [
        PanelQuery(name, panel["title"], target["expr"], target["instant"])
        for name, dashboard in dashboards().items()
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]


def alerts() -> list[dict[str, Any]]:
    """The chart's rules."""
    groups = yaml.safe_load((CHART / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def beyond_the_catalogue(expression: str) -> list[str]:
    """Names of metrics, and of labels of theirs, that the catalogue doesn't have."""
    wrong: list[str] = []
    labels: set[str] = {"le"}
    for name, matchers in _SERIES.findall(expression):
        metric = metric_of(name)
        if metric is None:
            wrong.append(name)
            continue
        labels.update(metric.labels)
        wrong += [f"{name}: {label}" for label in _MATCHER.findall(matchers) if label not in metric.labels]
    for text in _PUT_TOGETHER.findall(expression):
        wrong += [label for label in re.split(r"[,\s]+", text.strip()) if label and label not in labels]
    return wrong


def metrics_of(expression: str) -> Iterator[Metric]:
    """Those that it asks for."""
    for name, _ in _SERIES.findall(expression):
        metric = metric_of(name)
        if metric is not None:
            yield metric


def metric_of(name: str) -> Metric | None:
    """Of a series: a histogram has three."""
    if name in BY_NAME:
        return None if BY_NAME[name].type is MetricType.HISTOGRAM else BY_NAME[name]
    for suffix in _SUFFIXES:
        metric = BY_NAME.get(name.removesuffix(suffix))
        if metric is not None and name.endswith(suffix) and metric.type is MetricType.HISTOGRAM:
            return metric
    return None
