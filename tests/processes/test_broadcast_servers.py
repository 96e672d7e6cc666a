"""A broadcast state is on every server: each answers for it by itself, also once another one is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from keyhole import Client
from keyhole.config import JobConfig
from keyhole.errors import KeyholeError
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_state_server
from keyhole.model.read import Role, Stale
from keyhole.spark import queryable
from tests.support.streams import RunQuery, Stream
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, until

SCHEMA = "k string, v long"
FIRST = [{"k": "a", "v": 1}, {"k": "b", "v": 2}]
SECOND = [{"k": "b", "v": 3}, {"k": "c", "v": 4}]


@pytest.fixture
def servers(kafka: str, tmp_path: Path) -> Iterator[dict[str, Child]]:
    """Three, by address; the test may kill some."""
    started: dict[str, Child] = {}
    try:
        for number, port in enumerate(free_ports(3)):
            started[f"127.0.0.1:{port}"] = start_state_server(
                f"server-{number}", port, bootstrap_servers=kafka, directory=tmp_path, environ=os.environ
            )
        yield started
    finally:
        for child in started.values():
            child.kill()


def rules_of(address: str, application: str) -> tuple[dict[str, int], Role] | None:
    """What this server says by itself, got and scanned, and in which role; None: nothing yet, or of two roles."""
    try:
        with Client(address, timeout=PATIENCE_SECONDS) as client:
            whole = client.scan(application, "rules", (), stale=Stale.ALWAYS)
            rules = {entry.map_key: entry.value.v for entry in whole}
            answers = client.get_many(application, "rules", sorted(rules), stale=Stale.ALWAYS)
    except KeyholeError:
        return None
    if not {answer.role for answer in answers} <= {whole.source.role}:
        return None  # it has taken over in between
    return dict(zip(sorted(rules), (answer.value.v for answer in answers), strict=True)), whole.source.role


def await_rules(address: str, application: str, rules: dict[str, int]) -> Role:
    """Waits until this server has just these, and tells in which role."""
    found: list[Role] = []

    def has_them() -> bool:
        read = rules_of(address, application)
        if read is not None and read[0] == rules:
            found.append(read[1])
        return bool(found)

    until(has_them, LONG_SECONDS, 0.1, lambda: rules_of(address, application))
    return found[0]


def test_every_server_answers_for_a_broadcast_state_also_when_one_of_them_was_killed(
    kafka: str, servers: dict[str, Child], stream: Stream, run_query: RunQuery, application: str
) -> None:
    config = JobConfig(application, tuple(servers), kafka, epoch_deadline_seconds=120)

    def broadcast(*batches: list[dict[str, object]]) -> None:
        run_query(stream(SCHEMA, batches), "append", queryable.broadcast("rules", key="k", config=config))

    def await_everywhere(rules: dict[str, int]) -> list[str]:
        """The owners' addresses."""
        roles = {address: await_rules(address, application, rules) for address in servers}
        return [address for address, role in roles.items() if role is Role.OWNER]

    broadcast(FIRST)
    (owner,) = await_everywhere({"a": 1, "b": 2})
    servers.pop(owner).kill()
    await_everywhere({"a": 1, "b": 2})
    broadcast(FIRST, SECOND)
    assert len(await_everywhere({"a": 1, "b": 3, "c": 4})) == 1
