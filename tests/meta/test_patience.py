"""Tests are patient with what answers for real, and wait until a broker goes by what it was told."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
FOLDERS = ("contract", "fault", "fuzz", "processes", "property", "rpc", "smoke", "spark", "support", "unit")

# Of confluent_kafka's AdminClient.
CHANGES_OF_TOPICS = frozenset({"create_topics", "create_partitions", "delete_topics", "incremental_alter_configs"})


def hasty_clients(code: str) -> Iterator[int]:
    """The lines that make a client which waits for five seconds, the default: too few for a first answer of a slow
    machine. One of a constant address, which nobody listens at, may.
    """
    for call in _calls(code, {"Client"}):
        match call.func:
            case ast.Name("Client" | "AsyncClient") | ast.Attribute(ast.Name("keyhole"), "Client" | "AsyncClient"):
                given = [keyword.arg for keyword in call.keywords]
                if call.args and not isinstance(call.args[0], ast.Constant) and not {"timeout", None} & {*given}:
                    yield call.lineno


def changes_of_topics(code: str) -> Iterator[int]:
    """The lines that change Kafka's topics without a wait for the broker."""
    for call in _calls(code, CHANGES_OF_TOPICS):
        if isinstance(call.func, ast.Attribute) and call.func.attr in CHANGES_OF_TOPICS:
            yield call.lineno


def _calls(code: str, names: Collection[str]) -> Iterator[ast.Call]:
    """All, where the code has one of the names: most has none."""
    if any(f"{name}(" in code for name in names):
        yield from (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call))


def _found(by: Callable[[str], Iterator[int]], *excused: str) -> list[str]:
    files = [file for folder in FOLDERS for file in sorted((TESTS / folder).rglob("*.py"))]
    named = [(file.relative_to(TESTS).as_posix(), file) for file in files]
    return [f"{name}:{line}" for name, file in named if name not in excused for line in by(file.read_text())]


def test_clients_say_how_long_they_wait() -> None:
    assert _found(hasty_clients) == []


def test_topics_are_changed_where_the_broker_is_waited_for() -> None:
    assert _found(changes_of_topics, "support/topics.py") == []


@pytest.mark.parametrize(
    ("code", "hasty"),
    [
        ("Client(address)", True),
        ("keyhole.AsyncClient(proxy.address, routing='direct')", True),
        ("Client(address, timeout=60)", False),
        ("Client(address, **options)", False),
        ("Client('a:1')", False),
        ("httpx.Client(transport)", False),
    ],
)
def test_one_that_does_not_say_so_is_found(code: str, hasty: bool) -> None:
    assert list(hasty_clients(code)) == [1] * hasty


def test_a_change_of_a_topic_is_found() -> None:
    assert list(changes_of_topics("admin.create_topics([topic])\nadmin.delete_records([])")) == [1]
