"""From which topic a real-time query's rows come, and whether each still has the number of its record there."""

from __future__ import annotations

from typing import NamedTuple

from py4j.java_gateway import JavaObject
from pyspark import SparkContext
from pyspark.sql import DataFrame

from keyhole.changelog.kafka.brokers import java_settings
from keyhole.errors import InvalidConfiguration
from keyhole.spark.declaration.batch_columns import ONE_NAME, case_sensitive
from keyhole.spark.driver.data_frames import classic
from keyhole.spark.driver.plan_nodes import each, kind_of, nodes

PARTITION, OFFSET = "partition", "offset"
"""Columns of Spark's Kafka source that say which record a row came of."""

_NOT_IN_REAL_TIME = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "endingTimestamp",
)
_SERVERS = "bootstrap.servers"
_PROTOCOL, _PLAINTEXT = "kafka.security.protocol", "PLAINTEXT"
_EARLIEST = "earliest"
# Each of them counts in place of startingOffsets.
_OTHER_STARTS = ("startingTimestamp", "startingOffsetsByTimestamp")
_SEVERAL_ROWS = {"Generate": "an explode", "Expand": "several rows of each", "Join": "a join"}


class RealTimeSource(NamedTuple):
    """Where the rows of one branch of a query come from.

    Attributes:
        bootstrap_servers: As Keyhole's own clients take them (keyhole.changelog.kafka.brokers).
        as_keyhole: Spark comes to them as these clients do, and so as the same user.
        relation: The JVM's node of the plan.
    """

    topic: str
    bootstrap_servers: str
    as_keyhole: bool
    relation: JavaObject


def source_of(rows: DataFrame, sub: str | None, known: str = "") -> RealTimeSource:
    """The source of rows that check_real_time has seen.

    Args:
        known: The job's own Kafka, with how it is spoken to: Spark has that of the source in Java's words alone.
        sub: SQL that says which of a record's rows each is; None: the user has not said.

    Raises:
        InvalidConfiguration: They come from several topics, or not from the beginning of one. Or `partition` and
            `offset` are not the source's own. Or a record may become several rows, which nothing tells apart. The
            message says what to select. Or it is another Kafka than the job's, and a secured one.
    """
    plan = classic(rows)._jdf.queryExecution().analyzed()
    relations = [node for node in nodes(plan) if kind_of(node) == "StreamingRelationV2"]
    if len(relations) != 1:
        raise InvalidConfiguration(
            f"the rows come from {len(relations)} sources, and each numbers its records by itself: leave the union "
            'out, and give the rows of each by a name of its own: {"web": web_rows, "shop": shop_rows}'
        )
    topic, options = _topic_of(relations[0])
    source = RealTimeSource(topic, *_brokers(options, topic, known), relations[0])
    for name in (PARTITION, OFFSET):
        if not _is_its_own(plan, relations[0], name):
            raise InvalidConfiguration(
                f"the rows have not the column {name!r} of topic {source.topic}, by which each counts once: select "
                f'"{PARTITION}" and "{OFFSET}" of the Kafka source with the others, unchanged, and call other columns '
                "otherwise",
                column=name,
            )
        alike = next((other for other in rows.columns if other != name and other.lower() == name), None)
        if alike is not None and not case_sensitive(rows):
            raise InvalidConfiguration(
                f"the rows have the columns {name!r} and {alike!r}, which {ONE_NAME}; rename or drop the other one",
                column=alike,
            )
    if sub is None:
        for node in nodes(plan):
            if (what := _SEVERAL_ROWS.get(kind_of(node))) is not None:
                raise InvalidConfiguration(
                    f"by {what} a record may become several rows, of which only the first would count: say with sub= "
                    "which it is of them, as posexplode's pos; or sub='0', if there is never more than one"
                )
    return source


def _topic_of(relation: JavaObject) -> tuple[str, JavaObject]:
    """The topic, and the options of its source as Spark has them."""
    options = relation.extraOptions()
    topics = [name.strip() for name in str(options.getOrDefault("subscribe", "")).split(",")]
    if len(topics) != 1 or not topics[0]:
        raise InvalidConfiguration(
            "a real-time query reads one topic by its name, and each topic numbers its records by itself: use "
            'option("subscribe", topic), and give the rows of several topics each by a name of its own'
        )
    for name in _NOT_IN_REAL_TIME:
        if options.containsKey(name):
            raise InvalidConfiguration(
                f"in real-time mode Spark reads what there is, a task for each partition, and refuses option {name} of "
                f"topic {topics[0]} in the first batch: leave it out",
                option=name,
            )
    _check_start(options, topics[0])
    return topics[0], options


def _brokers(options: JavaObject, topic: str, known: str) -> tuple[str, bool]:
    """Those of the source as Keyhole's clients take them, and whether Spark comes to them as these do."""
    servers = str(options.getOrDefault("kafka.bootstrap.servers", ""))
    ours = java_settings(known)
    settings = {f"kafka.{name}": value for name, value in ours.items() if name != _SERVERS}
    # One address that both have is one listener of one Kafka.
    if not _addresses(servers).isdisjoint(_addresses(ours[_SERVERS])):
        return known, all(options.getOrDefault(name, "") == value for name, value in settings.items())
    if str(options.getOrDefault(_PROTOCOL, _PLAINTEXT)).upper() != _PLAINTEXT:
        raise InvalidConfiguration(
            f"topic {topic} is read from Kafka at {servers}, by {_PROTOCOL} "
            f"{options.getOrDefault(_PROTOCOL, '')}: Keyhole looks at the topic, too, and knows how to speak to the "
            f"job's own Kafka alone, which is {ours[_SERVERS]}. Name that one's brokers alike in both; or have the "
            "topic mirrored there",
            topic=topic,
        )
    return servers, not settings


def _addresses(servers: str) -> set[str]:
    return {address.strip() for address in servers.split(",")} - {""}


def _check_start(options: JavaObject, topic: str) -> None:
    """A new checkpoint must bring all rows that an earlier one did not: what was sent before counts once.

    Raises:
        InvalidConfiguration: It would pass some over in silence.
    """
    start = str(options.getOrDefault("startingOffsets", "latest"))
    other = next((name for name in _OTHER_STARTS if options.containsKey(name)), None)
    if other is not None or start.strip().lower() != _EARLIEST:
        raise InvalidConfiguration(
            f"topic {topic} is read from {other or start}: a start with a new checkpoint would pass over what came "
            f'since the last one. Use option("startingOffsets", "{_EARLIEST}"){" alone" if other else ""}, of which '
            "each row counts once, and leave out what is too old by a filter on the rows",
            option=other or "startingOffsets",
        )
    if str(options.getOrDefault("failOnDataLoss", "true")).strip().lower() != "true":
        raise InvalidConfiguration(
            f"failOnDataLoss of topic {topic} is not true: records that were deleted before they were read would be "
            "passed over in silence. Leave it out",
            option="failOnDataLoss",
        )


def _is_its_own(plan: JavaObject, relation: JavaObject, name: str) -> bool:
    """Whether the rows have one column of that name, and it is the source's, which nothing has changed."""
    (own,) = (attribute for attribute in each(relation.output()) if attribute.name() == name)
    found = [attribute for attribute in each(plan.output()) if attribute.name() == name]
    return len(found) == 1 and bool(found[0].exprId().equals(own.exprId()))


def slots_of(context: SparkContext) -> int:
    """How many tasks Spark runs at once now, on all of the application's executors."""
    spark = context._jsc.sc()
    return int(spark.maxNumConcurrentTasks(spark.resourceProfileManager().defaultResourceProfile()))
