"""What `keyhole doctor` makes of what it sees: of servers, clocks and routes, of topics, and of this machine."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from keyhole.changelog.kafka.topic_looks import SeenCluster, SeenTopic
from keyhole.changelog.settings import CHANGELOG, UPDATES
from keyhole.cli.doctor import machine_findings as machine
from keyhole.cli.doctor.cluster_findings import (
    ProxyAnswer,
    clock_findings,
    route_findings,
    server_findings,
    version_findings,
)
from keyhole.cli.doctor.diagnosis import Diagnosis, Level
from keyhole.cli.doctor.kafka_findings import topic_findings
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import state_pb2

NOW_MS = 1_000_000_000
STATE = state_pb2.StateDescriptor(application="shop", state="totals", query="totals", key_groups=4)
TOPIC = SeenTopic("id", 4, 3, 0, 0, 0, (), ())


def levels(found: Iterable[Diagnosis]) -> list[tuple[Level, str]]:
    return [(one.level, one.about) for one in found]


def answered(*servers: pb.ServerStatus, version: str = "1", took_ms: int = 10) -> ProxyAnswer:
    status = pb.StatusResponse(servers=servers, proxy=pb.ProxyStatus(version=version, now_ms=NOW_MS))
    return ProxyAnswer("proxy:7400", status, NOW_MS, NOW_MS + took_ms)


def server(name: str, *holdings: pb.StateHolding, **fields: object) -> pb.ServerStatus:
    of = {"server": name, "address": f"{name}:7410", "version": "1", "now_ms": NOW_MS + 5, **fields}
    return pb.ServerStatus(holdings=holdings, **of)


def holding(key_groups: Iterable[int], role: str = "OWNER", **fields: object) -> pb.StateHolding:
    source = state_pb2.Source(role=f"ROLE_{role}", unconfirmed=bool(fields.pop("unconfirmed", False)))
    return pb.StateHolding(descriptor=STATE, key_groups=key_groups, source=source, **{"ready": True, **fields})


def test_servers_that_do_not_answer_or_drain_are_named_with_what_to_do() -> None:
    found = list(server_findings(answered(server("a"), server("b", draining=True), server("c", unreachable="refused"))))
    assert [one.level for one in found] == [Level.OK, Level.WARNING, Level.FAULT]
    assert "refused" in found[2].says
    assert "c:7410" in found[2].todo
    (none,) = server_findings(answered())
    assert (none.level, "KEYHOLE_CLIENT_PROXY_SERVERS" in none.todo) == (Level.FAULT, True)


def test_versions_that_differ_are_named_with_who_has_them() -> None:
    assert levels(version_findings(answered(server("a")), "1")) == [(Level.OK, "versions")]
    (found,) = version_findings(answered(server("a", version="2"), server("b", version="")), "1")
    assert found.level is Level.WARNING
    assert "1: this machine, proxy proxy:7400; 2: server a; older: server b" in found.says


@pytest.mark.parametrize(
    ("ahead_ms", "level"), [(0, Level.OK), (900, Level.OK), (-5_000, Level.WARNING), (120_000, Level.FAULT)]
)
def test_clocks_are_held_against_this_machine_s_but_for_the_way_there(ahead_ms: int, level: Level) -> None:
    found = list(clock_findings(answered(server("a", now_ms=NOW_MS + 5 + ahead_ms))))
    assert [one.level for one in found] == [level]
    if level is not Level.OK:
        assert found[0].about == "server a"
        assert f"{(abs(ahead_ms) - 5) / 1000:.1f} s {'ahead of' if ahead_ms > 0 else 'behind'}" in found[0].says
    # One that took so long may have been read at any time meanwhile.
    assert levels(clock_findings(answered(server("a", now_ms=NOW_MS + 5_000), took_ms=9_000))) == [(Level.OK, "clocks")]
    assert not list(clock_findings(ProxyAnswer("old", pb.StatusResponse(), NOW_MS, NOW_MS)))


def test_key_groups_without_owner_or_reader_are_faults_of_their_state() -> None:
    about = "state shop/totals"

    def routes(*servers: pb.ServerStatus) -> list[Diagnosis]:
        found = list(route_findings(answered(*servers), [STATE]))
        assert {one.about for one in found} == {about}
        return found

    (whole,) = routes(server("a", holding([0, 1])), server("b", holding([2, 3])))
    assert (whole.level, whole.says) == (Level.OK, "all 4 key groups have an owner, and can be read")
    unread, ownerless = routes()
    assert (unread.level, ownerless.level) == (Level.FAULT, Level.FAULT)
    assert "all 4 key groups have no owner" in ownerless.says
    assert "query totals" in ownerless.todo
    (ownerless,) = routes(server("a", holding([0, 1])), server("b", holding([1, 2, 3], "STANDBY")))
    assert "2 of 4 key groups (2, 3) have no owner" in ownerless.says
    restoring = holding([0, 1, 2, 3], ready=False, restored_records=5, records_to_restore=1_000)
    assert [one.level for one in routes(server("a", restoring))] == [Level.FAULT, Level.WARNING]
    assert "5 of 1,000 records" in routes(server("a", restoring))[1].says
    (unconfirmed,) = routes(server("a", holding([0, 1, 2, 3], unconfirmed=True)))
    assert (unconfirmed.level, "unconfirmed" in unconfirmed.says) == (Level.WARNING, True)
    assert levels(route_findings(answered(server("a")), [])) == [(Level.OK, "states")]


@pytest.mark.parametrize(
    ("seen", "brokers", "level", "says"),
    [
        (TOPIC, 3, Level.OK, "4 partitions, replication 3"),
        (None, 3, Level.FAULT, "it is not there"),
        (TOPIC._replace(topic_id="other"), 3, Level.FAULT, "made anew"),
        (TOPIC._replace(partitions=5), 3, Level.FAULT, "5 partitions, and the state has 4 key groups"),
        (TOPIC._replace(wrong=("cleanup.policy is 'delete'",)), 3, Level.FAULT, "cleanup.policy is 'delete'"),
        (TOPIC._replace(leaderless=1), 3, Level.FAULT, "1 of its partitions have no leader"),
        (TOPIC._replace(lagging=2, below_minimum=2), 3, Level.FAULT, "no epoch can be committed"),
        (TOPIC._replace(lagging=2), 3, Level.WARNING, "not in sync"),
        (TOPIC._replace(replicas=1), 3, Level.WARNING, "replication is 1, and there are 3 brokers"),
        (TOPIC._replace(replicas=1), 1, Level.OK, "replication 1"),
        (TOPIC._replace(refused=("WRITE",)), 3, Level.WARNING, "may not WRITE"),
    ],
)
def test_a_topic_is_held_against_what_keyhole_needs(
    seen: SeenTopic | None, brokers: int, level: Level, says: str
) -> None:
    cluster = SeenCluster(brokers, {} if seen is None else {"keyhole.shop.totals": seen})
    uses = {"keyhole.shop.totals": CHANGELOG}
    (found,) = topic_findings(cluster, uses, {"keyhole.shop.totals": ("id", 4)})
    assert (found.level, found.about) == (level, "topic keyhole.shop.totals")
    assert says in found.says
    assert (found.todo != "") is (level is not Level.OK)
    if level is Level.OK:
        assert levels(topic_findings(cluster, {"keyhole.shop.totals": UPDATES}, {})) == [(Level.OK, found.about)]


def test_the_python_of_spark_s_workers_must_have_keyhole(tmp_path: Path) -> None:
    def workers(python: str) -> Diagnosis:
        (found,) = machine._workers({"PYSPARK_PYTHON": python, "PATH": "/usr/bin:/bin"})
        return found

    bare, other = tmp_path / "bare", tmp_path / "other"
    bare.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'keyhole'\" >&2\nexit 1\n")
    other.write_text("#!/bin/sh\necho 3.9\n")
    for of in (bare, other):
        of.chmod(0o755)
    assert workers(sys.executable).level is Level.OK
    for python, says in (
        (str(bare), "No module named 'keyhole'"),
        (str(other), "is Python 3.9, and the driver's is"),
        (str(tmp_path / "none"), "is not there"),
    ):
        found = workers(python)
        assert (found.level, found.todo.startswith(f"export PYSPARK_PYTHON={sys.executable}")) == (Level.FAULT, True)
        assert says in found.says


def test_without_a_word_spark_takes_the_first_python3(tmp_path: Path) -> None:
    python3 = tmp_path / "python3"
    python3.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'keyhole'\" >&2\nexit 1\n")
    python3.chmod(0o755)
    # The driver's own does not count.
    (found,) = machine._workers({"PYSPARK_DRIVER_PYTHON": sys.executable, "PATH": str(tmp_path)})
    assert (found.level, f"{python3} can't import keyhole" in found.says) == (Level.WARNING, True)
    (found,) = machine._workers({"PYSPARK_PYTHON": "", "PATH": str(tmp_path)})
    assert (found.level, found.says) == (Level.FAULT, "PYSPARK_PYTHON, which is empty, is not there")


def test_another_spark_is_a_fault(tmp_path: Path) -> None:
    found = [one for one in machine.machine_findings({"SPARK_HOME": str(tmp_path)}) if one.about == "SPARK_HOME"]
    assert [one.level for one in found] == [Level.FAULT]
    assert "unset SPARK_HOME" in found[0].todo


def test_where_no_jobs_can_run_java_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert levels(machine.machine_findings({"JAVA_HOME": "/none"})) == [(Level.OK, "Python"), (Level.SKIPPED, "jobs")]


def test_a_state_server_that_jobs_here_do_not_reach_is_said_so() -> None:
    (found,) = machine.way_findings(["127.0.0.1:1"])
    assert (found.level, found.about) == (Level.SKIPPED, "way to 127.0.0.1:1")
