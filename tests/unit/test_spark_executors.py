"""Addresses of state servers that come and go with Spark's executors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext

from keyhole.errors import InvalidConfiguration
from keyhole.spark.driver.executors import Executor, ServerAddresses, live_executors


class Spark:
    """Its executors, and how often it was asked."""

    def __init__(self, *executors: Executor) -> None:
        self.executors = list(executors)
        self.asked = 0
        self.stopped = False
        self.now = 100.0

    def __call__(self) -> list[Executor]:
        self.asked += 1
        if self.stopped:
            raise Py4JNetworkError("gone")
        return self.executors

    def addresses(self, *servers: str) -> ServerAddresses:
        return ServerAddresses(servers, self, lambda: self.now)


def test_a_template_stands_for_one_server_per_executor() -> None:
    spark = Spark(Executor(0, "10.0.0.7"), Executor(12, "10.0.0.8"))
    assert spark.addresses("127.0.0.1:245{executor:02d}")() == {"127.0.0.1:24500", "127.0.0.1:24512"}
    assert spark.addresses("{host}:7410")() == {"10.0.0.7:7410", "10.0.0.8:7410"}
    assert spark.addresses("server-{executor}.{host}:7410", "fixed:1")() == {
        "server-0.10.0.0.7:7410",
        "server-12.10.0.0.8:7410",
        "fixed:1",
    }


def test_executors_that_come_and_go_are_seen_after_a_second() -> None:
    spark = Spark(Executor(0, "a"))
    addresses = spark.addresses("{host}:1")
    assert addresses() == {"a:1"}
    spark.executors = [Executor(1, "b")]
    spark.now += 0.9
    assert addresses() == {"a:1"}
    assert spark.asked == 1
    spark.now += 0.1
    assert addresses() == {"b:1"}


def test_addresses_without_fields_ask_nobody() -> None:
    spark = Spark()
    assert spark.addresses("a:1", "b:1")() == {"a:1", "b:1"}
    assert spark.asked == 0


def test_a_spark_that_is_stopping_leaves_the_servers_as_they_were() -> None:
    spark = Spark(Executor(0, "a"))
    addresses = spark.addresses("{host}:1")
    addresses()
    spark.stopped, spark.now = True, spark.now + 5
    assert addresses() == {"a:1"}


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ("{node}:1", "it has the field {node}; the fields are {executor} and {host}"),
        ("{executor.__class__}:1", "it has the field {executor.__class__}"),
        ("{0}:1", "it has the field {0}"),
        ("{}:1", "it has the field {}"),
        ("{host", "expected '}'"),
        ("{host:02d}:1", "Unknown format code 'd'"),
        ("{host}", "executor 1 on host host would make it 'host'"),
        ("127.0.0.1:7{executor:05d}", "would make it '127.0.0.1:700001'"),
    ],
)
def test_a_template_that_makes_no_address_is_refused_at_once_and_says_why(server: str, message: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        Spark().addresses(server)
    assert message in str(caught.value)


class Summaries:
    """Spark's status store, as far as it is asked: an executor's id, and host:port or what there is instead of it."""

    def __init__(self, **hosts: str | None) -> None:
        self._found = [
            SimpleNamespace(id=lambda name=name: name, hostPort=lambda at=at: at) for name, at in hosts.items()
        ]

    @property
    def context(self) -> SparkContext:
        listed = SimpleNamespace(size=lambda: len(self._found), apply=lambda index: self._found[index])
        store = SimpleNamespace(executorList=lambda active: listed)
        java = SimpleNamespace(statusStore=lambda: store, isLocal=lambda: False)
        return cast(SparkContext, SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: java)))


def test_an_executor_that_spark_has_only_heard_of_is_none_yet() -> None:
    found = live_executors(Summaries(**{"driver": "10.0.0.6:7079", "2": "10.0.0.7:7078", "3": None, "4": ""}).context)
    assert found == [Executor(2, "10.0.0.7")]
