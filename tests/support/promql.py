"""What queries ask for, as far as it can be told without Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from charts.dashboards.queries import RELEASE
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

_SERIES = re.compile(r"\b(keyhole_(?!release\b)\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
_PUT_TOGETHER = re.compile(r"\b(?:by|on|group_left|group_right|without|ignoring)\s*\(([^)]*)\)")
_SUFFIXES = ("_bucket", "_sum", "_count")
_TEXT_OR_MATCHERS = re.compile(r'"(?:[^"\\]|\\.)*"|\{[^}]*\}')
_AGGREGATION = re.compile(
    r"\b(sum|min|max|avg|count|group|stddev|stdvar|topk|bottomk|quantile|count_values)\b\s*(?:(by|without)\s*\(([^)]*)\))?"
)
_MATCH = re.compile(r"\b(on|ignoring)\s*\(([^)]*)\)")
# What has other labels than its arguments, or none.
_OTHER_LABELS = re.compile(r"\b(vector|scalar|absent|absent_over_time|label_replace|label_join)\s*\(")


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

    def asked(self, application: str, window: str = _RATE_WINDOW, **chosen: str) -> str:
        """As Grafana asks, with one application chosen, and whatever else is named; all of the rest."""
        return choose(self.expression.replace("$__rate_interval", window), application=application, **chosen)


def choose(text: str, **chosen: str) -> str:
    """A text with a dashboard's variables, with these chosen, and all of the others."""
    return re.sub(r"\$(\w+)", lambda variable: chosen.get(variable[1], ".*"), text)


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
    labels: set[str] = {"le", *RELEASE}
    if re.search(r"\bup\b", expression):
        labels.add("job")  # Prometheus's own metric: whether a target could be scraped
    for name, matchers in _SERIES.findall(expression):
        metric = metric_of(name)
        if metric is None:
            wrong.append(name)
            continue
        labels.update(metric.labels)
        wrong += [f"{name}: {label}" for label in _MATCHER.findall(matchers) if label not in (*metric.labels, *RELEASE)]
    for text in _PUT_TOGETHER.findall(expression):
        wrong += [label for label in re.split(r"[,\s]+", text.strip()) if label and label not in labels]
    return wrong


def loses_the_release(expression: str) -> list[str]:
    """What in it drops or mixes the labels of the release, one by one: an aggregation, a match, a function.

    By its text, without a parser of PromQL: so a modifier has to stand before what is aggregated, as in
    `sum by (a) (b)`, and a function that makes labels of its own counts as one that drops them.
    """
    text = _TEXT_OR_MATCHERS.sub("", expression)
    wrong = [
        found[0].strip()
        for found in _AGGREGATION.finditer(text)
        if not _keeps_the_release(found[2] or "by", found[3] or "")
    ]
    wrong += [found[0] for found in _MATCH.finditer(text) if not _keeps_the_release(found[1], found[2])]
    return wrong + [found[1] for found in _OTHER_LABELS.finditer(text)]


def _keeps_the_release(modifier: str, labels: str) -> bool:
    named = set(re.split(r"[,\s]+", labels))
    return set(RELEASE) <= named if modifier in ("by", "on") else not set(RELEASE) & named


def matchers_of(expression: str) -> list[str]:
    """Those of each series, in its braces; empty: it has none."""
    return [matchers for _, matchers in _SERIES.findall(expression)]


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
