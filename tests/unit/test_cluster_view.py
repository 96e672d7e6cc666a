"""What the exporter makes of the answers of all servers together."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from keyhole.metrics.cardinality import MOST_STATES_OF_ALL, MOST_TOPICS, OTHER
from keyhole.metrics.catalogue import BY_NAME
from keyhole.metrics.counters import Histogram
from keyhole.metrics.families import Figures
from keyhole.metrics.metric import Component
from keyhole.v1 import state_pb2
from keyhole.v1 import stats_pb2 as pb
from services.metrics_exporter.cluster import REMEMBERED_SECONDS
from services.metrics_exporter.kafka_look import Found
from services.metrics_exporter.scrape import ScrapedAnswer, ScrapeView, Views
from tests.support import figures

NOW_MS = 1_700_000_000_000
OWNER, STANDBY = state_pb2.ROLE_OWNER, state_pb2.ROLE_STANDBY


def copy(
    groups: Collection[int],
    role: state_pb2.Role.ValueType = OWNER,
    state: str = "orders",
    assigned: Collection[int] | None = None,
    epoch: int = 7,
    seconds_ago: float = 1.0,
    lag: int = 0,
) -> pb.StateCopy:
    """16 key groups in all."""
    return pb.StateCopy(
        application="shop",
        state=state,
        all_key_groups=16,
        role=role,
        key_groups=groups,
        assigned_key_groups=groups if assigned is None else assigned,
        epoch=epoch,
        commit_time_ms=NOW_MS - round(seconds_ago * 1000),
        as_of_ms=NOW_MS - 500,
        lag_epochs=lag,
    )


def answer(
    name: str, *copies: pb.StateCopy, up: bool = True, families: tuple[pb.MetricFamily, ...] = ()
) -> ScrapedAnswer:
    stats = pb.ReadStatsResponse(name=name, copies=copies, families=families)
    return ScrapedAnswer(Component.STATE_SERVER, up, stats)


def cluster(*answers: ScrapedAnswer, views: Views | None = None, seconds: float = 0.0) -> pb.ReadStatsResponse:
    return as_stats((views or Views()).make(answers, Found(), NOW_MS, seconds))


def as_stats(view: ScrapeView) -> pb.ReadStatsResponse:
    return pb.ReadStatsResponse(families=view.families)


def groups(stats: pb.ReadStatsResponse, what: str) -> float:
    return figures.value(stats, f"keyhole_cluster_{what}_key_groups", application="shop", state="orders")


def test_key_groups_that_nobody_was_given_are_unowned() -> None:
    stats = cluster(answer("a", copy(range(6))), answer("b", copy(range(6, 12), assigned=range(6, 14))))
    assert groups(stats, "all") == 16
    assert groups(stats, "unowned") == 2
    assert groups(stats, "restoring") == 2
    assert groups(stats, "unreadable") == 4
    assert groups(stats, "contested") == 0


def test_what_a_server_held_that_does_not_answer_is_unowned_and_a_standby_may_still_be_read() -> None:
    stats = cluster(answer("a", copy(range(16)), up=False), answer("b", copy(range(12), STANDBY)))
    assert groups(stats, "unowned") == 16
    assert groups(stats, "unreadable") == 4
    assert groups(stats, "followed") == 12


def test_a_state_that_no_server_tells_of_stays_unowned_until_it_is_forgotten() -> None:
    views = Views()
    cluster(answer("a", copy(range(16))), views=views)
    assert groups(cluster(views=views, seconds=REMEMBERED_SECONDS - 1), "unowned") == 16
    assert not cluster(views=views, seconds=REMEMBERED_SECONDS + 1).families[1:]


def test_key_groups_that_two_servers_say_they_own_are_contested() -> None:
    stats = cluster(answer("a", copy(range(16))), answer("b", copy(range(12, 16))))
    assert groups(stats, "contested") == 4
    assert groups(stats, "unowned") == 0


def test_age_is_that_of_the_oldest_that_readers_get_and_a_standby_counts_where_no_owner_answers() -> None:
    behind, further = (
        copy(range(16), STANDBY, epoch=3, seconds_ago=90),
        copy(range(16), STANDBY, epoch=6, seconds_ago=9),
    )
    age = "keyhole_cluster_commit_age_seconds"
    owned = answer("a", copy(range(16)))
    assert figures.value(cluster(owned, answer("b", behind)), age) == pytest.approx(1.0)
    half = answer("a", copy(range(8)))
    stats = cluster(half, answer("b", behind), answer("c", further))
    assert figures.value(stats, age) == pytest.approx(9.0)
    assert figures.value(stats, "keyhole_cluster_oldest_epoch") == 6
    assert figures.value(stats, "keyhole_cluster_staleness_seconds") == pytest.approx(0.5)


def test_who_has_which_range_is_told() -> None:
    stats = cluster(answer("a", copy(range(3))), answer("b", copy(range(3, 16)), copy(range(2), STANDBY)))
    of = "keyhole_cluster_range_key_groups"
    assert figures.value(stats, of, server="a", role="owner", range="0-1") == 2
    assert figures.value(stats, of, server="a", role="owner", range="2-3") == 1
    assert figures.value(stats, of, server="b", role="owner", range="2-3") == 1
    assert figures.value(stats, of, server="b", role="standby", range="0-1") == 2


def test_a_standby_lag_is_that_of_the_worst() -> None:
    stats = cluster(
        answer("a", copy(range(16))),
        answer("b", copy(range(16), STANDBY, lag=2)),
        answer("c", copy(range(16), STANDBY)),
    )
    assert figures.value(stats, "keyhole_cluster_standby_lag_epochs") == 2


def families_of(server: str, states: int) -> tuple[pb.MetricFamily, ...]:
    made = Figures()
    for number in range(states):
        labels = (server, "shop", f"{server}-{number}")
        made.add("keyhole_state_server_lookup_keys_total", labels, 1)
        made.add("keyhole_state_server_index_entries", (*labels, f"field-{number}"), 1)
    histogram = Histogram(BY_NAME["keyhole_state_server_lookup_seconds"].buckets)
    histogram.observe(0.001)
    made.observed("keyhole_state_server_lookup_seconds", (server,), histogram)
    return tuple(made.families())


def test_figures_go_through_and_a_thousand_states_stay_within_the_bounds() -> None:
    answers = [answer(f"server-{n}", families=families_of(f"server-{n}", 100)) for n in range(10)]
    copies = [copy(range(16), state=f"state-{n}") for n in range(1_000)]
    stats = cluster(*answers, answer("server-x", *copies))
    for name in ("keyhole_state_server_lookup_keys_total", "keyhole_state_server_index_entries"):
        assert figures.value(stats, name) == 1_000
        (family,) = (family for family in stats.families if family.name == name)
        assert len({tuple(sample.labels[1:]) for sample in family.samples}) <= MOST_STATES_OF_ALL + 1
    together = figures.value(stats, "keyhole_state_server_index_entries", state=OTHER)
    assert figures.value(stats, "keyhole_state_server_index_entries", field=OTHER) == together > 0
    assert figures.value(stats, "keyhole_state_server_lookup_seconds") == 10
    assert figures.value(stats, "keyhole_cluster_known_states") == 1_000
    assert figures.value(stats, "keyhole_cluster_all_key_groups", state=OTHER) == 16 * (1_000 - MOST_STATES_OF_ALL)
    assert figures.value(stats, "keyhole_cluster_commit_age_seconds", state=OTHER) == pytest.approx(1.0)
    for family in stats.families:
        metric = BY_NAME[family.name]
        if metric.component is Component.EXPORTER:
            assert len(family.samples) <= metric.most_series


def test_what_the_catalogue_does_not_have_is_left_out_and_counted() -> None:
    odd = pb.MetricFamily(name="keyhole_state_server_odd", samples=[pb.MetricSample(value=1)])
    of_others = pb.MetricFamily(name="keyhole_exporter_up", labels=["component", "target"])
    view = Views().make([answer("a", families=(odd, of_others))], Found(), NOW_MS, 0.0)
    assert view.unknown[Component.STATE_SERVER] == 2
    assert not figures.names(as_stats(view)) & {odd.name, of_others.name}


def test_of_a_job_and_one_that_stands_by_the_start_is_one_of_both() -> None:
    def started(at: int) -> pb.MetricFamily:
        labels, samples = ["application"], [pb.MetricSample(labels=["shop"], value=at)]
        return pb.MetricFamily(name="keyhole_job_start_time_seconds", labels=labels, samples=samples)

    stats = [pb.ReadStatsResponse(name=f"job-{at}", families=(started(at),)) for at in (1000, 2000)]
    answers = [ScrapedAnswer(Component.JOB, True, of) for of in stats]
    families = as_stats(Views().make(answers, Found(), NOW_MS, 0.0))
    assert figures.value(families, "keyhole_job_start_time_seconds", application="shop") == 2000


def test_a_thousand_topics_of_a_source_stay_within_the_bounds_and_no_lag_is_lost() -> None:
    found = Found({("shop", "main", f"topic-{n}"): 1 for n in range(1_000)})
    stats = as_stats(Views().make([], found, NOW_MS, 0.0))
    lag = "keyhole_kafka_source_lag_records"
    assert figures.value(stats, lag) == 1_000
    assert figures.value(stats, lag, application="shop", query="main", topic="topic-1") == 1
    assert figures.value(stats, lag, application=OTHER, query=OTHER, topic=OTHER) == 1_000 - MOST_TOPICS


def test_rejected_records_of_a_thousand_topics_stay_within_the_bounds_and_none_is_lost() -> None:
    made = Figures()
    for number in range(1_000):
        made.add("keyhole_job_rejected_records_total", ("shop", f"topic-{number}"), 1)
    job = pb.ReadStatsResponse(name="shop", families=made.families())
    stats = cluster(ScrapedAnswer(Component.JOB, True, job))
    rejected = "keyhole_job_rejected_records_total"
    assert figures.value(stats, rejected) == 1_000
    assert figures.value(stats, rejected, application="shop", topic="topic-1") == 1
    assert figures.value(stats, rejected, application=OTHER, topic=OTHER) == 1_000 - MOST_TOPICS
    assert not figures.beyond_the_catalogue(stats)
