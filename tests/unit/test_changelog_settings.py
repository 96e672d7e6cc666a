"""Names and settings of topics."""

from __future__ import annotations

import pytest

from keyhole.changelog.settings import UPDATES, differences, min_insync, replicas, topic_name, topic_settings
from keyhole.errors import InvalidConfiguration


@pytest.mark.parametrize(("brokers", "copies", "insync"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (9, 3, 2)])
def test_a_topic_has_as_many_copies_as_brokers_up_to_three_and_one_may_be_away(
    brokers: int, copies: int, insync: int
) -> None:
    assert replicas(brokers) == copies
    assert min_insync(copies) == insync


def test_what_we_make_is_what_we_accept() -> None:
    for copies in (1, 2, 3):
        assert differences(topic_settings(copies), copies) == []
        assert differences(topic_settings(copies, UPDATES), copies, UPDATES) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact"),
        ("message.timestamp.type", "CreateTime"),
        ("retention.bytes", "1000"),
        ("retention.ms", "1000"),
        ("min.insync.replicas", "1"),
        ("unclean.leader.election.enable", "true"),
    ],
)
def test_updates_that_would_be_lost_or_have_their_producer_s_time_are_refused(name: str, value: str) -> None:
    (found,) = differences({**topic_settings(3, UPDATES), name: value}, 3, UPDATES)
    assert found.startswith(f"{name} is ")


def test_updates_may_be_kept_for_ever() -> None:
    assert differences({**topic_settings(3, UPDATES), "retention.ms": "-1"}, 3, UPDATES) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "delete"),
        ("cleanup.policy", "compact,delete"),
        ("min.compaction.lag.ms", "0"),
        ("delete.retention.ms", "1000"),
        ("min.insync.replicas", "1"),
        ("unclean.leader.election.enable", "true"),
        ("max.message.bytes", "1000000"),
    ],
)
def test_a_setting_that_would_lose_data_is_named_with_both_values(name: str, value: str) -> None:
    (found,) = differences({**topic_settings(3), name: value}, 3)
    assert found.startswith(f"{name} is ")
    assert value in found
    assert topic_settings(3)[name] in found


def test_stricter_settings_and_those_that_cost_only_space_are_accepted() -> None:
    stricter = {"delete.retention.ms": "999999999", "min.compaction.lag.ms": "999999999", "segment.bytes": "1048576"}
    assert differences({**topic_settings(3), **stricter}, 3) == []


@pytest.mark.parametrize(("application", "state"), [("my app", "s"), ("a", "s/t"), ("é", "s"), ("a", "s" * 300)])
def test_a_name_that_kafka_refuses_is_refused_with_the_name(application: str, state: str) -> None:
    with pytest.raises(InvalidConfiguration, match="topic name"):
        topic_name(application, state)


def test_a_topic_is_named_after_application_and_state() -> None:
    assert topic_name("temperature-monitor", "max_temperature") == "keyhole.temperature-monitor.max_temperature"
