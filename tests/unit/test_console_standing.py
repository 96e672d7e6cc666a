"""How the console says that a state stands, and what is wrong: from what servers say, without servers."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from keyhole.protocol.routing import build
from keyhole.protocol.server_view import Holding, ServerView
from keyhole.rpc import convert
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import state_pb2
from services.client_proxy.console.group_lag import CopiesLag
from services.client_proxy.console.group_runs import Awaited, GroupStatus
from services.client_proxy.console.state_standing import Described, describe_all
from services.client_proxy.console.troubles import Severity, troubles_of
from tests.support.readings import APPLICATION, STATE, descriptor

NOW_MS = 1_700_000_000_000
NAME = (APPLICATION, STATE)
STATED = msgspec.structs.replace(descriptor(), key_groups=8)
OWNER, STANDBY = state_pb2.ROLE_OWNER, state_pb2.ROLE_STANDBY


def held(
    server: str,
    groups: Iterable[int],
    role: state_pb2.Role = OWNER,
    *,
    ready: bool = True,
    unconfirmed: bool = False,
    as_of_ms: int = NOW_MS - 500,
    **more: int,
) -> pb.StateHolding:
    source = state_pb2.Source(
        server=server,
        role=role,
        epoch=more.pop("epoch", 7),
        commit_time_ms=NOW_MS - 2_000,
        as_of_ms=as_of_ms,
        generation=1,
        assignment_version=1,
        unconfirmed=unconfirmed,
        lag_epochs=more.pop("lag_epochs", 0),
    )
    return pb.StateHolding(
        descriptor=convert.descriptor_to_proto(STATED),
        server=server,
        key_groups=groups,
        source=source,
        ready=ready,
        **more,
    )


def described(*holdings: pb.StateHolding, lost: Iterable[str] = (), awaited: Iterable[Awaited] = ()) -> Described:
    """Of servers whose addresses are their names; the proxy has heard of all that they hold, those lost before that."""
    servers: dict[str, pb.ServerStatus] = {}
    views = []
    for name in sorted({holding.server for holding in holdings}):
        mine = [holding for holding in holdings if holding.server == name]
        away = name in lost
        servers[name] = pb.ServerStatus(
            server=name, address=name, holdings=() if away else mine, unreachable="gone" if away else ""
        )
        shown = tuple(
            Holding(
                STATED,
                frozenset(of.key_groups),
                convert.source_from_proto(of.source).role,
                of.source.generation,
                of.source.assignment_version,
                of.ready,
            )
            for of in mine
        )
        views.append(ServerView(name, name, holdings=shown, lost="gone" if away else ""))
    return describe_all(build(views, {NAME: STATED}), servers, {NAME: list(awaited)})[NAME]


def statuses(of: Described) -> list[GroupStatus]:
    return [run.status for run in of.runs for _ in range(run.first, run.last + 1)]


def test_key_groups_that_stand_alike_are_one_run() -> None:
    of = described(
        held("a", range(4)), held("b", range(4, 8)), held("b", range(4), STANDBY), held("a", range(4, 8), STANDBY)
    )
    assert [(run.first, run.last, run.status, run.owner, run.copies) for run in of.runs] == [
        (0, 3, GroupStatus.OWNED, "a", ("b",)),
        (4, 7, GroupStatus.OWNED, "b", ("a",)),
    ]
    standing = of.standing
    assert (standing.groups, standing.standbys, standing.servers) == ({"owned": 8}, 1, ("a", "b"))
    assert (standing.epoch, standing.commit_time_ms, standing.as_of_ms) == (7, NOW_MS - 2_000, NOW_MS - 500)
    assert troubles_of(NOW_MS, [standing], ()) == []


@pytest.mark.parametrize(
    ("holdings", "lost", "status", "severity", "says"),
    [
        (
            [held("a", range(8), unconfirmed=True)],
            (),
            GroupStatus.UNCONFIRMED,
            Severity.WARNING,
            "has not been heard of",
        ),
        ([held("a", range(8)), held("b", range(8), STANDBY)], "a", GroupStatus.FOLLOWED, Severity.WARNING, "no owner"),
        ([held("b", range(8), STANDBY)], (), GroupStatus.FOLLOWED, Severity.WARNING, "no owner"),
        ([held("a", range(8))], "a", GroupStatus.NOBODY, Severity.BAD, "no server: reads of their keys fail"),
        (
            [held("a", (), ready=False, restored_records=1, records_to_restore=4)],
            (),
            GroupStatus.WAITING,
            Severity.BAD,
            "25 % of 4 records are read",
        ),
        (
            [held("a", (), ready=False), held("b", range(8), STANDBY)],
            (),
            GroupStatus.RESTORING,
            Severity.NOTE,
            "other copies answer",
        ),
        ([held("a", range(8), epoch=0)], (), GroupStatus.OWNED, Severity.NOTE, "No epoch is complete yet"),
        ([held("a", range(8), as_of_ms=NOW_MS - 40_000)], (), GroupStatus.OWNED, Severity.WARNING, "is old"),
        (
            [held("a", range(8)), held("b", range(8), STANDBY, lag_epochs=9)],
            (),
            GroupStatus.OWNED,
            Severity.WARNING,
            "9 epochs behind",
        ),
        (
            [held("a", range(8), lag_updates=1200, updates_lag_ms=61_000)],
            (),
            GroupStatus.OWNED,
            Severity.WARNING,
            "1,200 updates are not applied yet; the oldest has waited for 61 s",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_wrong_is_told_with_what_to_do(
    holdings: list[pb.StateHolding], lost: str, status: GroupStatus, severity: Severity, says: str
) -> None:
    # One that was given all of it, and answers for nothing yet.
    awaited = [Awaited(of.server, of.source.role == OWNER, frozenset(range(8))) for of in holdings if not of.ready]
    of = described(*holdings, lost=lost, awaited=awaited)
    assert set(statuses(of)) == {status}
    (trouble,) = troubles_of(NOW_MS, [of.standing], ())
    assert (trouble.severity, trouble.about) == (severity, f"{APPLICATION}/{STATE}")
    assert says in trouble.what
    assert trouble.to_do


def test_a_state_that_nobody_holds_since_is_shown_as_such() -> None:
    (of,) = describe_all(build((), {NAME: STATED}), {}).values()
    assert statuses(of) == [GroupStatus.NOBODY] * 8
    assert (of.standing.entries, of.standing.as_of_ms, of.standing.servers) == (0, 0, ())


def test_one_key_group_may_stand_otherwise_than_the_rest() -> None:
    of = described(
        held("a", range(7)),
        held("b", (), ready=False),
        held("a", [7], STANDBY),
        held("b", [3], STANDBY),
        awaited=[Awaited("b", True, frozenset([7]))],
    )
    assert statuses(of) == [GroupStatus.OWNED] * 7 + [GroupStatus.RESTORING]
    assert [run.copies for run in of.runs] == [(), ("b",), (), ("a",)]
    assert of.standing.standbys == 0
    assert [copy.key_groups for copy in of.copies if copy.server == "a"] == [((0, 6),), ((7, 7),)]


def test_what_a_server_answers_for_is_owned_while_it_restores_more() -> None:
    """As after the loss of another server, whose key groups it is given."""
    of = described(
        held("a", range(4), ready=False),
        held("b", [6, 7], STANDBY, ready=False),
        awaited=[Awaited("a", True, frozenset(range(4, 8))), Awaited("b", False, frozenset([0]))],
    )
    assert statuses(of) == [*[GroupStatus.OWNED] * 4, *[GroupStatus.WAITING] * 2, *[GroupStatus.RESTORING] * 2]
    assert {run.owner for run in of.runs} == {"a"}
    assert [(run.copies, run.catching_up) for run in of.runs] == [((), ("b",)), ((), ()), ((), ()), (("b",), ())]
    assert [run.lag for run in of.runs] == [CopiesLag.FAR, CopiesLag.CURRENT, CopiesLag.NONE, CopiesLag.FAR]


@pytest.mark.parametrize(
    ("lacks", "lag"),
    [
        ({}, CopiesLag.CURRENT),
        ({"lag_epochs": 1}, CopiesLag.CURRENT),
        ({"lag_epochs": 2}, CopiesLag.BEHIND),
        ({"lag_epochs": 5}, CopiesLag.FAR),
        ({"updates_lag_ms": 999}, CopiesLag.CURRENT),
        ({"updates_lag_ms": 1_000}, CopiesLag.BEHIND),
        ({"updates_lag_ms": 10_000}, CopiesLag.FAR),
    ],
)
def test_the_lag_of_a_key_group_is_that_of_its_copy_that_lacks_the_most(lacks: dict[str, int], lag: CopiesLag) -> None:
    of = described(held("a", range(8)), held("b", range(4), STANDBY), held("c", range(4), STANDBY, **lacks))
    assert [(run.first, run.last, run.lag) for run in of.runs] == [(0, 3, lag), (4, 7, CopiesLag.CURRENT)]


def test_what_a_server_only_follows_is_not_counted_twice() -> None:
    sizes = {"entries": 100, "bytes": 8_000}
    of = described(
        held("a", range(4), **sizes),
        held("b", range(4, 8), **sizes),
        held("a", range(4, 8), STANDBY, **sizes),
        held("b", range(4), STANDBY, **sizes),
    )
    assert (of.standing.entries, of.standing.bytes, of.standing.estimated) == (100, 8_000, True)
    assert described(held("a", range(8), **sizes), held("b", range(8), STANDBY, **sizes)).standing.entries == 100
    # Replicas alone.
    assert described(held("b", range(8), STANDBY, **sizes)).standing.entries == 100


def test_an_earlier_state_of_the_same_name_says_nothing() -> None:
    old = held("b", range(8), STANDBY, entries=5)
    old.descriptor.topic_id = "another"
    servers = {
        "a": pb.ServerStatus(server="a", address="a", holdings=[held("a", range(8))]),
        "b": pb.ServerStatus(server="b", address="b", holdings=[old]),
    }
    tables = build([], {NAME: STATED})
    assert describe_all(tables, servers)[NAME].standing.servers == ("a",)


def test_servers_that_are_away_or_drain_are_told_of() -> None:
    servers = [
        pb.ServerStatus(server="a", address="a:1", unreachable="connection refused"),
        pb.ServerStatus(address="b:1", unreachable="silent"),
        pb.ServerStatus(server="c", address="c:1", draining=True),
        pb.ServerStatus(server="d", address="d:1"),
        pb.ServerStatus(server="e", address="e:1", draining=True, goes_on=True),
    ]
    found = troubles_of(NOW_MS, (), servers)
    assert [(of.severity, of.about) for of in found] == [
        (Severity.WARNING, "a"),
        (Severity.WARNING, "b:1"),
        (Severity.NOTE, "c"),
        (Severity.NOTE, "e"),
    ]
    assert "connection refused" in found[0].what
    assert [of.to_do for of in found[2:]] == [
        "Nothing: it is about to end.",
        "Nothing. `keyhole drain e --undo` ends that.",
    ]
