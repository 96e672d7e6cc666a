"""Feeds, and state servers without a job: they are told what `keyhole feed` takes, and find each other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keyhole.cli.arguments import parser_of_all
from keyhole.cli.feed import feed_options
from keyhole.feed.feed_options import describe
from keyhole.model.state import StateKind
from tests.support.chart import CHART, JOB, KAFKA, environment, names, notes, one, pod, refused, render, scenario

CI = CHART / "ci"
TOTALS = "Deployment/keyhole-totals-feed"
FEED: dict[str, Any] = {
    "name": "totals",
    "state": "shop/totals",
    "topic": "orders",
    "key": ["customer"],
    "reduce": ["amount=sum"],
}


def feed(**more: Any) -> dict[str, Any]:
    """Values with one feed, which has this otherwise."""
    return KAFKA | {"feeds": [FEED | more]}


def arguments(**more: Any) -> list[str]:
    """The words that the feed's container is given."""
    [container] = pod(render(feed(**more)), TOTALS).containers
    words: list[str] = container["args"]
    return words


def described(**more: Any) -> Any:
    """The state that the command makes of these words."""
    return describe(feed_options(parser_of_all().parse_args(["feed", *arguments(**more)])))


def test_the_command_takes_the_words_and_makes_the_state_of_them() -> None:
    state = described(keyGroups=8, ttlSeconds=1000000)
    assert (state.application, state.state, state.kind) == ("shop", "totals", StateKind.REDUCING)
    assert (state.reducers, state.key_groups, state.ttl_ms) == (("sum",), 8, 1_000_000_000)


def test_where_nothing_is_said_of_key_groups_the_command_chooses() -> None:
    assert not [word for word in arguments() if word.startswith("--key-groups")]


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"reduce": [], "value": ["amount:decimal(9,2)", "at:timestamp"], "orderBy": "at"}, StateKind.VALUE),
        ({"reduce": [], "value": ["amount:double"], "mapKey": ["day:date"]}, StateKind.MAP),
        ({"reduce": [], "value": ["amount:double"], "maxLength": 10}, StateKind.LIST),
        ({"reduce": ["amount:decimal(9,2)=sum"], "format": "debezium"}, StateKind.REDUCING),
        (
            {"reduce": ["orders=count", "spent=sum:amount:decimal(9,2)", "at:timestamp=max", "last=max_by(at):amount"]},
            StateKind.REDUCING,
        ),
        (
            {"reduce": ['"net=eur":int=sum', 'spent=sum:"net:eur"', '"a:b"=count'], "key": ['"id:x":int']},
            StateKind.REDUCING,
        ),
        ({"format": "avro", "registry": "http://registry:8081"}, StateKind.REDUCING),
        ({"format": "protobuf", "registry": "http://registry:8081"}, StateKind.REDUCING),
    ],
    ids=str,
)
def test_each_kind_of_state_can_be_said(more: dict[str, Any], kind: StateKind) -> None:
    assert described(**more).kind is kind


def test_deletions_are_by_order_where_rows_are() -> None:
    ordered = {"reduce": [], "value": ["amount:double", "at:timestamp"], "orderBy": "at"}
    assert described(**ordered).keep_deleted_ms == 86_400_000
    assert described(**ordered, keepDeletedSeconds=60).keep_deleted_ms == 60_000
    assert not [word for word in arguments(unorderedDeletes="delete") if "delete" in word], "there is no order"
    words = arguments(**ordered, unorderedDeletes="ignore", deleteWhen="__deleted=true")
    assert {"--unordered-deletes=ignore", "--delete-when=__deleted=true"} <= set(words)


def test_a_feeds_state_may_have_indexes() -> None:
    assert described(reduce=[], value=["amount:double", "at:timestamp"], index=["amount", "at"]).index == (
        "amount",
        "at",
    )


def test_all_options_are_passed_on() -> None:
    words = arguments(standbys=1, fromEarliest=True, strict=True, unchecked=True, registry="http://registry:8081")
    flags = {"--from-earliest", "--strict", "--unchecked"}
    assert flags | {"--standbys=1", "--registry=http://registry:8081"} <= set(words)
    assert not flags & set(arguments())


def test_what_feeds_share_stands_once() -> None:
    values = feed() | {"feedDefaults": {"standbys": 2, "format": "debezium"}}
    [container] = pod(render(values), TOTALS).containers
    assert {"--standbys=2", "debezium"} <= set(container["args"])


def test_there_is_never_a_second_one_beside_it() -> None:
    spec = one(scenario(CI / "feed-values.yaml"), "Deployment", "keyhole-totals-feed")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


@pytest.mark.parametrize(
    ("values", "servers"),
    [
        ({}, "dns:keyhole-state-servers.data.svc.cluster.local:7410"),
        ({"stateServers.enabled": True}, "dns:keyhole-state-server.data.svc.cluster.local:7410"),
        ({"discovery": {"kind": "static", "servers": ["a:7410", "b:7410"]}}, "a:7410,b:7410"),
    ],
    ids=str,
)
def test_it_gives_key_groups_to_servers_of_their_own_or_to_those_that_there_are(
    values: dict[str, Any], servers: str
) -> None:
    objects = render(feed(), values)
    [container] = pod(objects, TOTALS).containers
    assert environment(container)["KEYHOLE_JOB_SERVERS"] == servers
    if servers.startswith("dns:"):
        service = one(objects, "Service", servers.removeprefix("dns:").partition(".")[0])["spec"]
        assert service["publishNotReadyAddresses"] is True


def test_state_servers_without_a_job_own_and_go_one_at_a_time() -> None:
    objects = scenario(CI / "feed-values.yaml")
    of = pod(objects, "StatefulSet/keyhole-state-server")
    [server] = of.containers
    settings = environment(server)
    assert settings["KEYHOLE_STATE_SERVER_ROLE"] == "owner"
    assert "KEYHOLE_STATE_SERVER_APPLICATIONS" not in settings
    assert of.spec["terminationGracePeriodSeconds"] > float(settings["KEYHOLE_STATE_SERVER_DRAIN_SECONDS"])
    assert of.metadata["labels"]["keyhole.dev/state-server"] == "true"
    assert one(objects, "PodDisruptionBudget", "keyhole-state-server")["spec"]["maxUnavailable"] == 1
    [replica] = pod(objects, "StatefulSet/keyhole-replica").containers
    assert environment(replica)["KEYHOLE_STATE_SERVER_APPLICATIONS"] == "shop"


def test_the_exporter_asks_feeds_as_it_asks_drivers() -> None:
    def asked(*values: dict[str, Any]) -> str:
        [exporter] = pod(render(*values), "Deployment/keyhole-metrics-exporter").containers
        return environment(exporter)["KEYHOLE_METRICS_EXPORTER_COORDINATORS"]

    assert asked(feed()).endswith("component=feed")
    both = asked(feed(), {"jobs": [JOB]})
    assert both.count("kubernetes:7430?") == 2
    assert "component=spark-driver,kubernetes:" in both
    by_name = asked(feed(), {"discovery.kind": "dns"})
    assert by_name == "dns:keyhole-totals-feed.data.svc.cluster.local:7430"


def test_only_the_exporter_and_prometheus_reach_it_and_it_reaches_state_servers() -> None:
    objects = scenario(CI / "feed-values.yaml")
    rules = one(objects, "NetworkPolicy", "keyhole-totals-feed")["spec"]["ingress"]
    assert [rule["ports"] for rule in rules] == [[{"port": "stats"}], [{"port": "metrics"}]]
    servers = one(objects, "NetworkPolicy", "keyhole-state-servers")["spec"]["ingress"][0]
    assert "feed" in json.dumps(servers["from"])


def test_it_has_a_certificate_and_kafkas_settings_as_jobs_have() -> None:
    secured = {
        "kafka": {"bootstrapServers": "kafka:9093", "clientSecret": "kafka-client"},
        "security.tls": {"enabled": True, "secretName": "keyhole-tls"},
        "feeds": [FEED | {"tlsSecretName": "totals-tls", "envSecrets": ["proxy"], "env": {"HTTPS_PROXY": "http://a"}}],
    }
    of = pod(render(secured), TOTALS)
    [container] = of.containers
    settings = environment(container)
    assert settings["KEYHOLE_JOB_TLS"] == "on"
    assert settings["KEYHOLE_JOB_BOOTSTRAP_SERVERS"].endswith("?settings=/etc/keyhole/kafka/kafka.properties")
    assert settings["HTTPS_PROXY"] == "http://a"
    assert container["envFrom"] == [{"secretRef": {"name": "proxy"}}]
    secrets = {volume["secret"]["secretName"] for volume in of.spec["volumes"] if "secret" in volume}
    assert secrets == {"totals-tls", "kafka-client"}


def test_how_its_schema_registry_is_spoken_to_is_in_a_secret() -> None:
    more = {"format": "avro", "registry": "https://registry:8081", "registrySecret": "totals-registry"}
    of = pod(render(feed(**more)), TOTALS)
    [container] = of.containers
    file = "/etc/keyhole/registry/registry.properties"
    assert f"--registry=https://registry:8081?settings={file}" in container["args"]
    assert {"name": "registry", "mountPath": "/etc/keyhole/registry", "readOnly": True} in container["volumeMounts"]
    secrets = {volume["secret"]["secretName"] for volume in of.spec["volumes"] if "secret" in volume}
    assert secrets == {"totals-registry"}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (KAFKA | {"feeds": [FEED, FEED | {"state": "shop/other"}]}, "two feeds have the name totals"),
        (KAFKA | {"feeds": [FEED, FEED | {"name": "again"}]}, "two feeds have the state shop/totals"),
        (feed(value=["amount"]), "feeds[totals] has value and reduce"),
        (feed(reduce=[]), "feeds[totals] has neither value nor reduce"),
        (feed(format="avro"), "feeds[totals] has the format avro, and no registry"),
        (feed(registrySecret="a"), "feeds[totals] has registrySecret, and no registry"),
        (feed(env={"KEYHOLE_JOB_SERVERS": "a:1"}), "env has KEYHOLE_JOB_SERVERS"),
        (feed(replicas=2), "additional properties 'replicas'"),
        (feed(state="totals"), "/feeds/0/state"),
        (feed(key=[]), "/feeds/0/key"),
        (feed(reduce=["amount"]), "/feeds/0/reduce/0"),
        (feed(reduce=["spent=sum:"]), "/feeds/0/reduce/0"),
        (feed(reduce=["spent:double=sum:amount"]), "/feeds/0/reduce/0"),
        (
            feed() | {"stateServers.enabled": True, "discovery": {"kind": "static", "servers": ["a:7410"]}},
            "stateServers.enabled makes state servers that have no fixed addresses",
        ),
        (
            KAFKA | {"stateServers": {"enabled": True, "store": {"volume": "persistentClaim"}}},
            "stateServers.store.size is empty",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_can_not_be_is_refused_by_name(values: dict[str, Any], says: str) -> None:
    assert says in refused(values)


def test_the_notes_name_each_feed_and_where_its_state_is() -> None:
    alone = notes(feed())
    assert "shop/totals: from topic orders" in alone
    assert "logs -f deploy/keyhole-totals-feed" in alone
    assert "keyhole-totals-feed" in names(render(feed()), "Deployment")
    assert "They wait for state servers" in alone
    own = notes(feed() | {"stateServers.enabled": True})
    assert "on 2 state servers of their own" in own
    assert "There is no job" not in own
    assert "on the executors' state servers" in notes(feed() | {"jobs": [JOB]})
