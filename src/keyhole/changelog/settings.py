"""The names and settings of the topics. Pure; docs/changelog.md lists them for operators."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from keyhole.errors import InvalidConfiguration, TooLarge

CONTROL = "control"
"""The part of the control topic's name where a changelog's has its state's; so no state may be called this."""

DELETE_RETENTION_MS = 24 * 3600 * 1000
"""A deletion stays readable this long after compaction: a copy that was away for longer may have missed it."""

UPDATES_RETENTION_MS = 24 * 3600 * 1000
"""An update stays this long: an owner that was away for longer can't go on, nor one that remembers rows for longer
(FeedRules.rows_for_ms)."""

MIN_COMPACTION_LAG_MS = 10 * 60 * 1000
"""Younger records are never compacted: followers this close see every epoch whole, marker by marker."""

CONTROL_TRANSACTION_TIMEOUT_MS = 60_000
"""After this Kafka ends a transaction on the control topic, where an append is a small one. Nothing behind one that is
open can be read, by whichever query of the application, and the query whose driver died in it may have nothing to do
for a long time. A driver that is suspended for longer in an append is fenced, and starts again."""

CONTROL_TRANSACTION_MOST_SECONDS = CONTROL_TRANSACTION_TIMEOUT_MS // 1000 + 10
"""In which Kafka has ended a transaction that is open for too long: it looks for them every 10 s."""

MAX_ROW_BYTES = 16 << 20
"""The largest record that a changelog takes, key and value together, with what Kafka puts around it."""

MAX_RECORD_BYTES = MAX_ROW_BYTES - 128
"""Without that: the header of a batch (61 bytes), and lengths and offsets of the record (at most 36). A broker measures
both, and librdkafka sends what it refuses for that again and again, until the deadline."""

# Kafka's defaults (1 GiB, 7 days) would make a restore of a small, busy state read a gigabyte.
SEGMENT_BYTES = 64 << 20
"""A partition is compacted only up to its active segment, which is at most so large."""

SEGMENT_MS = 3600 * 1000
"""And at most so old, where it is written to."""

_MAX_REPLICAS = 3
_MAX_TOPIC_NAME = 249


def topic_name(application: str, state: str) -> str:
    """The changelog topic of a state; with CONTROL, the application's control topic.

    Raises:
        InvalidConfiguration: Kafka would refuse the name.
    """
    name = f"keyhole.{application}.{state}"
    if len(name) > _MAX_TOPIC_NAME or not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise InvalidConfiguration(
            f"application {application!r} and state {state!r} make the topic name {name!r}, which Kafka refuses: use "
            f"letters, digits, '.', '_' and '-', at most {_MAX_TOPIC_NAME} characters in all",
            topic=name,
        )
    return name


def dead_letter_topic(source: str) -> str:
    """The topic of the dead letters of another one."""
    return f"{source}.dead-letter"


def updates_topic_name(application: str, state: str) -> str:
    """The topic of a state's updates, in the real-time lane. Names have no dots, so it is nobody's changelog.

    Raises:
        InvalidConfiguration: Kafka would refuse the name.
    """
    return topic_name(application, f"{state}.updates")


def refused_name(topic: str, why: str) -> InvalidConfiguration:
    """The error for a topic that Kafka does not make because of its name."""
    return InvalidConfiguration(
        f"Kafka makes no topic {topic}: {why}. It tells no two names apart that differ only in . and _, as those of "
        "application a_b with state c, and of a with b_c: choose another application or state name",
        topic=topic,
    )


def check_apart(topics: Iterable[str]) -> None:
    """For topics that one run makes. Raises InvalidConfiguration: Kafka tells two of their names not apart."""
    seen: dict[str, str] = {}
    for topic in topics:
        other = seen.setdefault(topic.replace(".", "_"), topic)
        if other != topic:
            raise refused_name(topic, f"it collides with topic {other}, which belongs to the same run")


def refused_right(topic: str, operation: str) -> InvalidConfiguration:
    """The error for an operation on a topic that Kafka's rules keep from the caller."""
    return InvalidConfiguration(
        f"Kafka's rules don't let the user of this process {operation} topic {topic}: allow it (kafka-acls --add "
        f"--allow-principal User:NAME --operation {operation.capitalize()} --topic {topic}), or go on as another user",
        topic=topic,
        operation=operation,
    )


def refused_group(group: str) -> InvalidConfiguration:
    """The error for a consumer group that Kafka's rules keep from the caller."""
    return InvalidConfiguration(
        f"Kafka's rules don't let the user of this process READ group {group}: allow it (kafka-acls --add "
        f"--allow-principal User:NAME --operation Read --operation Describe --group {group}), or go on as another user",
        group=group,
    )


def too_large(topic: str, size: int) -> TooLarge:
    """The error for a record that Kafka does not take.

    Args:
        topic: The changelog of a state.
        size: Of key and value, in bytes.
    """
    # Names have no dots.
    state = topic.partition(".")[2].replace(".", "/", 1)
    return TooLarge(
        f"a row of state {state} takes {size:,} bytes with its key and what is stored beside it, and "
        f"{MAX_RECORD_BYTES:,} is the most that a changelog takes: make the value smaller, or split it over several "
        "keys",
        state=state,
        bytes=size,
        limit=MAX_RECORD_BYTES,
    )


def refused_ids(prefix: str) -> InvalidConfiguration:
    """The error for transactional.ids that Kafka's rules keep from the caller."""
    return InvalidConfiguration(
        f"Kafka's rules don't let the user of this process write under transactional.ids that begin with {prefix}: "
        "allow it (kafka-acls --add --allow-principal User:NAME --operation Write --operation Describe "
        f"--transactional-id {prefix} --resource-pattern-type prefixed), or go on as another user",
        prefix=prefix,
    )


def ids_prefix(application: str, query: str) -> str:
    """With what all transactional.ids of a query begin: its coordinator's, and the grants of state servers."""
    return f"keyhole.{application}.{query}."


def transactional_id(application: str, query: str) -> str:
    """The transactional.id of a query's coordinator: at most one of them can write."""
    return f"{ids_prefix(application, query)}coordinator"


def unused_id(prefix: str) -> str:
    """A transactional.id that begins so, and under which nobody writes: who takes it fences nobody."""
    return f"{prefix}rights"


def replicas(brokers: int) -> int:
    """How many copies a topic gets: as many as the cluster has brokers for, up to three."""
    return min(_MAX_REPLICAS, brokers)


def min_insync(replication: int) -> int:
    """One copy may be away; with one copy, none."""
    return max(1, replication - 1)


class TopicUse(NamedTuple):
    """What topics of one use are made with, and what is checked of one that is there.

    Attributes:
        settings: Its own.
        exact: Names of settings, of these and of all topics', that must be as they are made.
        least: Those that must not be less; -1 is without bound.
    """

    settings: Mapping[str, str]
    exact: tuple[str, ...]
    least: tuple[str, ...]


CHANGELOG = TopicUse(
    {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(MIN_COMPACTION_LAG_MS),
        "delete.retention.ms": str(DELETE_RETENTION_MS),
    },
    ("cleanup.policy", "unclean.leader.election.enable"),
    ("min.compaction.lag.ms", "delete.retention.ms", "min.insync.replicas", "max.message.bytes"),
)
"""A changelog, or the control topic."""

UPDATES = TopicUse(
    {
        "cleanup.policy": "delete",
        "retention.ms": str(UPDATES_RETENTION_MS),
        "retention.bytes": "-1",
        "message.timestamp.type": "LogAppendTime",
    },
    ("cleanup.policy", "retention.bytes", "message.timestamp.type", "unclean.leader.election.enable"),
    ("retention.ms", "min.insync.replicas", "max.message.bytes"),
)
"""The updates of a state in the real-time lane."""


def topic_settings(replication: int, use: TopicUse = CHANGELOG) -> dict[str, str]:
    """What a topic of ours is made with."""
    return {
        **use.settings,
        "min.insync.replicas": str(min_insync(replication)),
        "unclean.leader.election.enable": "false",
        "max.message.bytes": str(MAX_ROW_BYTES),
        "segment.bytes": str(SEGMENT_BYTES),
        "segment.ms": str(SEGMENT_MS),
    }


def differences(actual: Mapping[str, str], replication: int, use: TopicUse = CHANGELOG) -> list[str]:
    """The settings of an existing topic with which committed changes could be lost, each in words; empty: none.

    Settings that cost only time or space are the operator's business.
    """
    wanted = topic_settings(replication, use)
    return [
        *(
            f"{name} is {actual.get(name)!r}, it must be {wanted[name]!r}"
            for name in use.exact
            if actual.get(name) != wanted[name]
        ),
        *(
            f"{name} is {actual.get(name)}, it must be at least {wanted[name]}"
            for name in use.least
            if -1 != int(actual.get(name, "0")) < int(wanted[name])
        ),
    ]
