"""Tiers: what a test needs decides when it runs. A pytest plugin (tests/conftest.py loads it).

    core       Python alone, gRPC and HTTP on loopback included
    smoke      one Kafka, one Spark, a few shared scenarios, one demo, one SIGKILL each of driver and server
    spark      the same Kafka and Spark
    processes  JVMs, brokers and stacks of its own
    fault      minutes of faults against all of it
    platform   Docker, a Kubernetes cluster

A test is of the tier of its folder, or of the one tier that it is marked with. A test that asks for a fixture which its
tier doesn't have, or which there isn't, is refused while tests are collected, those that are left out as well.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support import examples
from tests.support.sharing import place, unshared

TIERS = ("core", "smoke", "spark", "processes", "fault", "platform")

OF_FOLDER = {
    **dict.fromkeys(("unit", "property", "contract", "meta", "chart", "rpc"), "core"),
    "smoke": "smoke",
    "spark": "spark",
    "processes": "processes",
    **dict.fromkeys(("fault", "fuzz"), "fault"),
    **dict.fromkeys(("containers", "e2e"), "platform"),
}

# By fixture, the tiers that have it.
_JVM = frozenset(("smoke", "spark", "processes", "fault", "platform"))
_HAS_FIXTURE = {
    **dict.fromkeys(("kafka", "spark", "service", "jars", "spark_jars", "s3_jars", "java"), _JVM),
    "machine": frozenset(("fault",)),
    **dict.fromkeys(("built", "tag"), frozenset(("platform",))),
}

# What `-m` is where nothing is said: pyproject.toml's addopts.
DEFAULT = "core or smoke"

_LEFT_OUT = pytest.StashKey[Counter[str]]()
_TESTS = Path(__file__).resolve().parents[1]

# Of the test that runs in this process; an audit hook can't be given arguments, nor taken away.
_running: list[str] = []


def tier_of(item: pytest.Item | pytest.Function) -> str:
    """The tier that a test is marked with, or that of its folder.

    Raises:
        pytest.UsageError: It is marked with several, or lies in a folder that has none.
    """
    marked = sorted({mark.name for mark in item.iter_markers() if mark.name in TIERS})
    if len(marked) > 1:
        raise pytest.UsageError(f"{item.nodeid} is marked with several tiers: {', '.join(marked)}. Take one")
    if marked:
        return marked[0]
    folder = item.path.relative_to(_TESTS).parts[0]
    if folder not in OF_FOLDER:
        raise pytest.UsageError(f"{item.nodeid}: tests/support/tiers.py says no tier for the folder tests/{folder}")
    return OF_FOLDER[folder]


def refusal(tier: str, fixtures: Iterable[str]) -> str:
    """Why a test of this tier can't have these fixtures; empty where it can."""
    for name in fixtures:
        if name in _HAS_FIXTURE and tier not in _HAS_FIXTURE[name]:
            tiers = " or ".join(known for known in TIERS if known in _HAS_FIXTURE[name])
            return (
                f"it asks for the fixture {name!r}, which the tier {tier!r} doesn't have. Mark it @pytest.mark.<tier> "
                f"({tiers}), or move it to that tier's folder"
            )
    return ""


def refuse_unknown_fixtures(item: pytest.Function) -> None:
    """Refuses a test that asks for a fixture which nobody defines: pytest itself says so only as the test runs.

    Raises:
        pytest.UsageError: It names the fixtures.
    """
    unknown = [
        name for name in item.fixturenames if name != "request" and name not in item._fixtureinfo.name2fixturedefs
    ]
    if unknown:
        raise pytest.UsageError(f"{item.nodeid} asks for a fixture that there isn't: {', '.join(unknown)}")


def pytest_configure(config: pytest.Config) -> None:
    """A core test that starts a JVM is in the wrong tier, however it comes by it."""
    config.stash[_LEFT_OUT] = Counter()
    sys.addaudithook(_refuse_java)


def _refuse_java(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "subprocess.Popen" or _running[-1:] != ["core"]:
        return
    program, command = Path(os.fsdecode(arguments[0])), arguments[1]
    # To be asked what it is, Java starts next to nothing; in tests it is mostly a script of that name.
    if program.name == "java" and not {"-version", "--list-modules"}.intersection(command):
        raise RuntimeError(
            "a test of the tier 'core' starts no JVM: mark it spark or processes (tests/support/tiers.py)"
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Refuses a test whose tier has not what it asks for: an error of its file's collection."""
    why = refusal(tier_of(metafunc.definition), metafunc.fixturenames)
    if why:
        raise pytest.Collector.CollectError(f"{metafunc.definition.nodeid}: {why}")


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
    """The same for what a test asks for only as it runs (`getfixturevalue`)."""
    item = request._pyfuncitem
    why = refusal(tier_of(item), [fixturedef.argname])
    if why:
        pytest.fail(f"{item.nodeid}: {why}", pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks each test with its tier, and puts what takes longest first, so that all processes end together."""
    for item in items:
        item.add_marker(tier_of(item))
        if wrong := unshared(item.nodeid.partition("::")[0], getattr(item, "fixturenames", ())):
            raise pytest.UsageError(wrong)
        if isinstance(item, pytest.Function):
            refuse_unknown_fixtures(item)
    items.sort(key=lambda item: (-TIERS.index(tier_of(item)), place(item.nodeid)))


def pytest_deselected(items: Iterable[pytest.Item]) -> None:
    """Counts what `-m` leaves out."""
    for item in items:
        item.config.stash[_LEFT_OUT][tier_of(item)] += 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Says which tier runs in this process."""
    _running.append(tier_of(item))
    try:
        return (yield)
    finally:
        _running.pop()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """All of pytest-xdist's processes leave out the same: any of them tells it."""
    left_out = getattr(node, "workeroutput", {}).get("left_out")
    if left_out is not None:
        node.config.stash[_LEFT_OUT] = Counter(left_out)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of pytest-xdist's tells the one that reports."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = dict(session.config.stash[_LEFT_OUT])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """What was left out, and how to run it."""
    left = config.stash[_LEFT_OUT]
    if not left or config.option.collectonly:
        return
    terminalreporter.section("left out")
    for tier in TIERS:
        if left[tier]:
            terminalreporter.write_line(f"{left[tier]:6} of the tier {tier:10} uv run pytest -m {tier}")
    terminalreporter.write_line('       all of them:              uv run pytest -m ""')
    if examples.are_first():
        terminalreporter.write_line(
            "       two thirds of each property test's examples: uv run pytest --further-examples"
        )
