"""The catalogue's own rules."""

from __future__ import annotations

import re

from keyhole.metrics.cardinality import OTHER, Kept
from keyhole.metrics.catalogue import BY_NAME, CATALOGUE
from keyhole.metrics.labels import LABELS
from keyhole.metrics.metric import Metric, MetricType
from tests.support.of_all import of_all

PREFIXES = "state_server|client_proxy|job|spark|exporter|cluster|kafka"


def _ids(metric: Metric) -> str:
    return metric.name


def test_no_name_is_given_twice() -> None:
    assert len(BY_NAME) == len(CATALOGUE)


@of_all(CATALOGUE, _ids)
def test_a_name_is_component_what_and_unit(metric: Metric) -> None:
    end = (f"_{metric.unit}" if metric.unit else "") + ("_total" if metric.type is MetricType.COUNTER else "")
    assert re.fullmatch(rf"keyhole_({PREFIXES})_[a-z_]+", metric.name)
    assert metric.name.endswith(end)


@of_all(CATALOGUE, _ids)
def test_a_metric_says_what_it_is_and_is_bounded(metric: Metric) -> None:
    assert metric.help.endswith(".")
    assert set(metric.labels) <= set(LABELS)
    assert (metric.type is MetricType.HISTOGRAM) is bool(metric.buckets)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert 1 <= metric.most_series <= 10_000


@of_all([m for m in CATALOGUE if {"state", "query"} & set(m.labels)], _ids)
def test_states_and_queries_are_told_with_their_application(metric: Metric) -> None:
    assert "application" in metric.labels


def test_the_first_names_keep_their_label_and_the_others_share_one() -> None:
    kept = Kept(2)
    kept.note([("shop", "orders"), ("shop", "carts"), ("shop", "clicks")])
    kept.note([("a", "first-of-the-alphabet")])
    assert kept.label(("shop", "carts")) == ("shop", "carts")
    assert kept.label(("shop", "clicks")) == kept.label(("a", "first-of-the-alphabet")) == (OTHER, OTHER)
