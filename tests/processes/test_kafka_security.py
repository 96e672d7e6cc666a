"""Kafka that takes only who has a password, over TLS, and has rules for what they may do.

A job reads it, and its changelog is kept there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from keyhole import Client
from keyhole.changelog.base import TopicRight
from keyhole.changelog.kafka.brokers import client_settings
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.changelog.kafka.record_topics import await_topic, make_topics
from keyhole.changelog.settings import (
    CONTROL,
    ids_prefix,
    topic_name,
    transactional_id,
    unused_id,
    updates_topic_name,
)
from keyhole.clock import SystemClock
from keyhole.config import JobConfig, TopicJobConfig
from keyhole.coordinator.feed_run import FeedRun
from keyhole.coordinator.server_link import ServerLink
from keyhole.errors import InvalidConfiguration
from keyhole.feed.feed_options import RecordFormat
from keyhole.feed.process import FeedProcess
from keyhole.feed.topic_feed import TopicFeed
from keyhole.local.java import Java
from keyhole.local.ports import free_ports
from keyhole.local.services import start_client_proxy, start_state_server
from keyhole.model.state import StateKind
from keyhole.spark import queryable
from keyhole.spark.driver.data_frames import classic
from keyhole.spark.running import real_time_records, records
from tests.support.secured_kafka import USER, SecuredKafka, secured_kafka
from tests.support.states import descriptor
from tests.support.streams import RunQuery
from tests.support.waiting import LONG_SECONDS, until

_PASSWORD = "the-right-one"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, jars: Sequence[Path], java: Java) -> Iterator[SecuredKafka]:
    """One that lets everybody do all with a topic, unless there is a rule for that topic."""
    directory = tmp_path_factory.mktemp("secured")
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        # Also the broker itself.
        "super.users": "User:ANONYMOUS",
    }
    with secured_kafka(directory, jars, java, _PASSWORD, rules) as made:
        settings = (directory / "kafka.properties").read_text()
        (directory / "wrong.properties").write_text(settings.replace(_PASSWORD, "wrong"))
        yield made


@pytest.fixture
def secured(broker: SecuredKafka) -> str:
    """The address, with the file of settings that opens it."""
    return broker.address


def test_jobs_by_batches_and_in_real_time_read_from_it_and_their_states_are_kept_there(
    spark: SparkSession, run_query: RunQuery, secured: str, application: str, tmp_path: Path
) -> None:
    make_topics(secured, {application: 1}, LONG_SECONDS)
    producer = Producer(client_settings(secured))
    producer.produce(application, json.dumps({"k": "k0", "v": 7}))
    assert producer.flush(LONG_SECONDS) == 0
    server, proxy = free_ports(2)
    environ = dict(os.environ)
    with ExitStack() as ending:
        started = start_state_server("secured", server, bootstrap_servers=secured, directory=tmp_path, environ=environ)
        ending.callback(started.terminate)
        started = start_client_proxy(
            "proxy", proxy, servers=[f"127.0.0.1:{server}"], directory=tmp_path, environ=environ
        )
        ending.callback(started.terminate)
        job = JobConfig(application=application, servers=(f"127.0.0.1:{server}",), bootstrap_servers=secured)
        config = TopicJobConfig(topic=application, checkpoint=str(tmp_path / "checked"), directory=tmp_path)
        parsed = F.from_json(F.col("value").cast("string"), "k string, v long").alias("of")
        rows = records(spark, secured, config).select(parsed).select("of.*")
        # Which Spark's page shows, and which ends a query's error.
        assert _PASSWORD not in classic(rows)._jdf.queryExecution().toString()
        run_query(rows, "append", queryable.value("last", key="k", config=job))
        with Client(f"127.0.0.1:{proxy}", timeout=LONG_SECONDS) as client:
            assert client.get(application, "last", "k0").value.v == 7
            live = queryable.value("live", key="k", config=job)
            query = queryable.realtime(
                numbered(real_time_records(spark, secured, config)), live, checkpoint=str(tmp_path / "live")
            )
            try:
                until(lambda: client.get(application, "live", "k0").found, LONG_SECONDS)
            finally:
                query.stop()


def numbered(rows: DataFrame) -> DataFrame:
    parsed = F.from_json(F.col("value").cast("string"), "k string, v long").alias("of")
    return rows.select("partition", "offset", parsed).select("partition", "offset", "of.*")


def test_a_real_time_query_that_may_not_read_its_topic_is_refused_before_it_takes_the_state(
    spark: SparkSession, broker: SecuredKafka, application: str, tmp_path: Path
) -> None:
    make_topics(broker.plain, {application: 1}, LONG_SECONDS)
    allow(broker, ResourceType.TOPIC, application, ResourcePatternType.LITERAL, AclOperation.DESCRIBE)
    job = JobConfig(application=application, servers=("127.0.0.1:1",), bootstrap_servers=broker.address)
    config = TopicJobConfig(topic=application, checkpoint=str(tmp_path), directory=tmp_path)
    rows, live = (
        numbered(real_time_records(spark, broker.address, config)),
        queryable.value("live", key="k", config=job),
    )
    with pytest.raises(InvalidConfiguration, match=f"READ topic {application}: allow it"):
        queryable.realtime(rows, live, checkpoint=str(tmp_path))


def test_a_wrong_password_is_told_as_such(secured: str) -> None:
    wrong = secured.replace("kafka.properties", "wrong.properties")
    with pytest.raises(InvalidConfiguration, match=r"(?i)authentication"):
        await_topic(wrong, "any", LONG_SECONDS)


def may_not_write(address: str, application: str, topic: str) -> bool:
    """Whether Kafka says so of who comes to that address."""
    try:
        KafkaChangelog(address, application).admin().check_rights({topic: TopicRight.WRITE}, LONG_SECONDS)
    except InvalidConfiguration:
        return True
    return False


def may_not_use(address: str, application: str, query: str) -> bool:
    """Whether Kafka says so of who comes to that address, of the query's ids."""
    try:
        KafkaChangelog(address, application).admin().check_ids([ids_prefix(application, query)], LONG_SECONDS)
    except InvalidConfiguration:
        return True
    return False


def feed_run(address: str, application: str, server: str = "127.0.0.1:1") -> FeedRun:
    config = JobConfig(
        application=application,
        servers=(server,),
        bootstrap_servers=address,
        kafka_deadline_seconds=LONG_SECONDS,
    )
    return FeedRun(config, "main", KafkaChangelog(address, application), SystemClock())


def allow(
    broker: SecuredKafka, kind: ResourceType, name: str, pattern: ResourcePatternType, to: AclOperation
) -> AclBindingFilter:
    """Lets USER do this, and nobody anything else with what is called so. Returns what names the rule."""
    rule = AclBinding(kind, name, pattern, f"User:{USER}", "*", to, AclPermissionType.ALLOW)
    admin = AdminClient({"bootstrap.servers": broker.plain})
    admin.create_acls([rule])[rule].result(LONG_SECONDS)
    return AclBindingFilter(kind, name, pattern, rule.principal, "*", to, AclPermissionType.ALLOW)


def forget(broker: SecuredKafka, rule: AclBindingFilter) -> None:
    """Takes a rule back."""
    admin = AdminClient({"bootstrap.servers": broker.plain})
    admin.delete_acls([rule])[rule].result(LONG_SECONDS)


def test_a_start_that_may_not_use_its_transactional_ids_is_refused_before_it_fences_the_run_that_is_well(
    broker: SecuredKafka, application: str
) -> None:
    """By its coordinator's id alone it would get as far as that: the ids of its servers' grants it could not fence."""
    coordinators = transactional_id(application, "main")
    with closing(KafkaChangelog(broker.plain, application).control("main")) as well:
        well.open(LONG_SECONDS)
        assert not may_not_use(broker.address, application, "main")
        of = ResourceType.TRANSACTIONAL_ID, ids_prefix(application, "main"), ResourcePatternType.PREFIXED
        allow(broker, *of, AclOperation.DESCRIBE)
        allow(broker, of[0], coordinators, ResourcePatternType.LITERAL, AclOperation.WRITE)
        until(lambda: may_not_use(broker.address, application, "main"), LONG_SECONDS)
        assert not may_not_use(broker.address, application, "another")
        with closing(feed_run(broker.address, application)) as run, pytest.raises(InvalidConfiguration) as refused:
            run.start(
                {descriptor(application=application, kind=StateKind.REDUCING, reducers=("last",), topic_id=""): 0}
            )
        assert f"--transactional-id keyhole.{application}.main. --resource-pattern-type prefixed" in str(refused.value)
        well.append({"opened/main": b"{}"}, LONG_SECONDS)
        allow(broker, *of, AclOperation.WRITE)
        until(lambda: not may_not_use(broker.address, application, "main"), LONG_SECONDS)
        well.append({"opened/main": b"{}"}, LONG_SECONDS)


def test_a_start_that_may_not_write_the_control_topic_is_refused_before_it_fences_the_run_that_is_well(
    broker: SecuredKafka, application: str
) -> None:
    topic = topic_name(application, CONTROL)
    with closing(KafkaChangelog(broker.plain, application).control("main")) as well:
        well.open(LONG_SECONDS)
        assert not may_not_write(broker.address, application, topic)
        allow(broker, ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, AclOperation.READ)
        until(lambda: may_not_write(broker.address, application, topic), LONG_SECONDS)
        assert not may_not_write(broker.plain, application, topic)
        run = feed_run(broker.address, application)
        with closing(run), pytest.raises(InvalidConfiguration, match=f"WRITE topic {topic}") as refused:
            run.start(
                {descriptor(application=application, kind=StateKind.REDUCING, reducers=("last",), topic_id=""): 0}
            )
        assert refused.value.facts["operation"] == "WRITE"
        well.append({"opened/main": b"{}"}, LONG_SECONDS)


def feed_of(address: str, application: str) -> FeedProcess:
    """A feed of the application's topic of its own name, as who comes to that address."""
    state = descriptor(
        application=application, query="counts", kind=StateKind.REDUCING, reducers=("last",), topic_id=""
    )
    return FeedProcess(
        feed_run(address, application),
        state,
        0,
        lambda of, topic_id: TopicFeed(address, of, application, RecordFormat.JSON, SystemClock(), topic_id=topic_id),
        SystemClock(),
        take_over=True,
    )


@pytest.mark.parametrize("lacks", ["source", "positions", "dead letters"])
def test_a_feed_that_kafka_does_not_let_feed_is_refused_before_it_fences_the_run_that_is_well(
    broker: SecuredKafka, application: str, lacks: str
) -> None:
    make_topics(broker.plain, {application: 1, f"{application}.dead-letter": 1}, LONG_SECONDS)
    lease = f"keyhole.{application}.counts.feed.{application}"
    kind, name, says = {
        "source": (ResourceType.TOPIC, application, f"READ topic {application}: allow"),
        "positions": (ResourceType.GROUP, lease, f"READ group {lease}: allow"),
        "dead letters": (ResourceType.TOPIC, f"{application}.dead-letter", f"WRITE topic {application}.dead-letter"),
    }[lacks]

    def refusal() -> str:
        try:
            TopicFeed(
                broker.address, descriptor(application=application), application, RecordFormat.JSON, SystemClock()
            ).check_rights()
        except InvalidConfiguration as error:
            return error.message
        return ""

    with closing(KafkaChangelog(broker.plain, application).control("main")) as well:
        well.open(LONG_SECONDS)
        assert not refusal()
        allow(broker, kind, name, ResourcePatternType.LITERAL, AclOperation.DESCRIBE)
        until(lambda: bool(refusal()), LONG_SECONDS)
        with closing(feed_of(broker.address, application)) as feed, pytest.raises(InvalidConfiguration, match=says):
            feed.start()
        well.append({"opened/main": b"{}"}, LONG_SECONDS)


def test_a_start_whose_servers_may_not_write_the_changelog_is_refused_before_it_fences_the_run_that_is_well(
    broker: SecuredKafka, application: str, tmp_path: Path
) -> None:
    """They are other users to Kafka than the driver, which may do all."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    state = descriptor(application=application, kind=StateKind.REDUCING, reducers=("last",), topic_id="")
    started = start_state_server(
        "secured", port, bootstrap_servers=broker.address, directory=tmp_path, environ=dict(os.environ)
    )
    with ExitStack() as ending:
        ending.callback(started.terminate)
        link = ending.enter_context(closing(ServerLink(address)))

        def refusal() -> str:
            try:
                link.describe(application, "main", ["counts"])
            except InvalidConfiguration as error:
                return error.message
            return ""

        changelog = KafkaChangelog(broker.plain, application)
        changelog.admin().ensure(state, LONG_SECONDS)
        with closing(changelog.updates_topics()) as topics:
            topics.ensure("counts", state.key_groups, "", LONG_SECONDS)
        well = ending.enter_context(closing(changelog.control("main")))
        well.open(LONG_SECONDS)
        assert not refusal()
        for kind, name, allowed, says in (
            (ResourceType.TOPIC, state.topic, AclOperation.READ, f"WRITE topic {state.topic}"),
            (
                ResourceType.TOPIC,
                updates_topic_name(application, "counts"),
                AclOperation.WRITE,
                f"READ topic {updates_topic_name(application, 'counts')}",
            ),
            (
                ResourceType.TRANSACTIONAL_ID,
                unused_id(ids_prefix(application, "main")),
                AclOperation.DESCRIBE,
                f"begin with {ids_prefix(application, 'main')}",
            ),
        ):
            rule = allow(broker, kind, name, ResourcePatternType.LITERAL, allowed)
            until(lambda says=says: says in refusal(), LONG_SECONDS)  # type: ignore[misc]
            with (
                closing(feed_run(broker.plain, application, address)) as run,
                pytest.raises(InvalidConfiguration, match=f"of state server secured: .*{says}"),
            ):
                run.start({state: 0})
            well.append({"tried/main": b"{}"}, LONG_SECONDS)
            forget(broker, rule)
        until(lambda: not refusal(), LONG_SECONDS)
