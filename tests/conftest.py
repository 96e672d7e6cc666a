"""What all tests share: their tiers, the jars, and one real broker for the whole session."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from rich.console import Console

from keyhole.demo.fetching import fetch_jars
from keyhole.demo.preparing import prepare_classes
from keyhole.errors import JarsUnavailable, JavaMissing
from keyhole.local.jars import JarSet, default_cache_dir, fetch
from keyhole.local.java import Java, find_java
from keyhole.local.kafka import LocalKafka
from tests.support.examples import Asked, ask_for, draw_further, examples

pytest_plugins = [
    "tests.support.sharing",
    "tests.support.tiers",
    "tests.support.progress",
    "tests.support.streams",
    "tests.support.scenario",
    "tests.support.object_store",
]

# Of the JVMs that tests start, Spark's above all: none lives long enough for the compiler that optimises, which takes
# more than a quarter of their processor time; and a collector with threads of its own takes a twelfth. Without that
# compiler a JVM has room for 48 MiB of code, which a session's Spark fills: clearing it took a fifteenth of its time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC")

# What each Python process loads at its start, Spark's workers too.
_AT_START = str(Path(__file__).parent / "support" / "at_start")
if _AT_START not in (paths := os.environ.get("PYTHONPATH", "").split(os.pathsep)):
    os.environ["PYTHONPATH"] = os.pathsep.join([_AT_START, *filter(None, paths)])

# So that what a store did otherwise is told, and not only that it did.
pytest.register_assert_rewrite("keyhole.testing.stores")


# What needs no jars, by its folder.
_WITHOUT_JARS = ("unit", "property", "meta", "chart", "rpc")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Fetches the jars and has classes archived once, before there are workers, where a person sees it: a worker shows
    nothing."""
    config = session.config
    tests = Path(__file__).parent
    given = [Path(config.invocation_params.dir, argument.partition("::")[0]).resolve() for argument in config.args]
    idle = all(any(path.is_relative_to(tests / name) for name in _WITHOUT_JARS) for path in given)
    if hasattr(config, "workerinput") or config.option.collectonly or idle or config.option.markexpr == "core":
        return
    console = Console(stderr=True)
    capturing = config.pluginmanager.getplugin("capturemanager")
    with capturing.global_and_fixture_disabled() if capturing else contextlib.nullcontext():
        try:
            kafka, _ = fetch_jars(console, os.environ, JarSet.KAFKA, JarSet.SPARK_KAFKA)
            prepare_classes(console, os.environ, find_java(os.environ), kafka)
        except (JarsUnavailable, JavaMissing) as error:  # what needs them fails by it, in its turn; all else runs
            console.print(error.message, markup=False, soft_wrap=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is made while tests are collected lives as long as the process. The collector looked at all of it dozens of
    times, a quarter of the collection's processor time; it never does."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before Hypothesis draws."""
    if item.config.getoption("--further-examples"):
        draw_further(item.nodeid)


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
def s3_jars() -> list[Path]:
    """What Spark reads and writes s3a:// with, likewise."""
    return fetch(JarSet.SPARK_S3, default_cache_dir(os.environ))


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, jars: list[Path], java: Java) -> Iterator[str]:
    """The bootstrap servers of a broker that all tests share. A test uses names of its own, and doesn't stop it."""
    with LocalKafka(tmp_path_factory.mktemp("kafka"), jars, java) as broker:
        yield broker.bootstrap_servers


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--further-examples` and `--thorough`: for those who have the time."""
    further = "of property tests the two thirds of their examples that no other run has"
    parser.addoption("--further-examples", action="store_true", help=further)
    parser.addoption(
        "--thorough", action="store_true", help="as many as there are of both kinds, and others in each run"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Without `--thorough` the same examples in every run: what fails then has to do with what was changed."""
    thorough = config.getoption("--thorough")
    further = config.getoption("--further-examples") and not thorough
    ask_for(Asked.ALL if thorough else Asked.FURTHER if further else Asked.FIRST)
    settings.register_profile(
        "keyhole",
        max_examples=examples(100),
        # A busy machine is no failure: what takes too long ends by pytest's own limit.
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=not thorough and not further,
    )
    settings.load_profile("keyhole")
