"""What all integration tests share: the jars, and one real broker for the whole session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from keyhole.local.jars import JarSet, default_cache_dir, fetch
from keyhole.local.java import Java, find_java
from keyhole.local.kafka import LocalKafka

# A busy machine is no failure: what takes too long ends by pytest's own limit.
settings.register_profile("keyhole", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("keyhole")

# Of the JVMs that tests start, Spark's above all: none lives long enough for the compiler that optimises, which takes
# more than a quarter of their processor time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

# So that what a store did otherwise is told, and not only that it did.
pytest.register_assert_rewrite("keyhole.testing.stores")


@pytest.fixture(scope="session")
def java() -> Java:
    """The machine's Java."""
    return find_java(os.environ)


@pytest.fixture(scope="session")
def jars() -> list[Path]:
    """Kafka's jars, fetched at the first use."""
    return fetch(JarSet.KAFKA, default_cache_dir(os.environ))


@pytest.fixture(scope="session")
def spark_jars() -> list[Path]:
    """Spark's Kafka connector, for `spark.jars`, fetched at the first use."""
    return fetch(JarSet.SPARK_KAFKA, default_cache_dir(os.environ))


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, jars: list[Path], java: Java) -> Iterator[str]:
    """The bootstrap servers of a broker that all tests share. A test uses names of its own, and doesn't stop it."""
    with LocalKafka(tmp_path_factory.mktemp("kafka"), jars, java) as broker:
        yield broker.bootstrap_servers


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """The whole suite runs in two processes, or more where there are cores for it; a part of it in this one.

    Most of what takes long waits for other processes, so that one process leaves half of a machine idle.
    """
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return 0
    return max(2, min(4, (os.cpu_count() or 2) // 2))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, so that all processes end at the same time; the fault harness last.

    That takes as much of the machine as there is, for minutes: whatever else fails should fail before.
    """
    order = ["integration", "", "fault"]
    items.sort(key=lambda item: order.index(next((part for part in order if f"tests/{part}/" in item.nodeid), "")))
