"""What a state server refuses changes nothing on it: runs, grants, leases, copies and staged rows stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from keyhole.errors import (
    Draining,
    Fenced,
    KeyholeError,
    MalformedRequest,
    NotOwner,
    NotReady,
    ProtocolMismatch,
    StageLost,
    StateConflict,
    StillRunning,
    Unsupported,
)
from keyhole.rpc.convert import descriptor_to_proto
from keyhole.rpc.version import PROTOCOL_VERSION
from keyhole.v1 import state_server_pb2 as pb
from tests.support.refused_starts import snapshot
from tests.support.simulation import Letter, World, ipc
from tests.support.states import KEY_GROUPS, descriptor
from tests.support.sums import ONE, SUM, sums


class Alive(NamedTuple):
    """A query that has completed two epochs on server a, and is in the middle of the third."""

    world: World
    run: pb.Run
    version: int
    incarnation: str

    def of(self, **changes: Any) -> pb.Run:
        run = pb.Run()
        run.CopyFrom(self.run)
        run.MergeFrom(pb.Run(**changes))
        return run

    def ask(self, method: str, request: Any) -> Any:
        servicer = self.world.servers["a"].servicer
        assert servicer is not None
        return self.world.call(Letter("a", servicer, method, request))


@pytest.fixture
def alive() -> Iterator[Alive]:
    world = World(SUM, "a")
    for batch_id in range(2):
        world.run_epoch(batch_id, ONE)
    assert world.coordinator is not None
    run = world.coordinator._run.run
    named = pb.Run(application="app", query="main", generation=run.generation, run_id=run.run_id)
    made = Alive(world, named, world.coordinator.membership.assignment.version, world.servers["a"].incarnation)
    made.ask("Stage", (header(made), ipc(dict(list(ONE.items())[:1]))))
    yield made
    world.close()


def header(alive: Alive, **changes: Any) -> pb.StageHeader:
    given = {
        "run": alive.run,
        "incarnation": alive.incarnation,
        "assignment_version": alive.version,
        "state": "counts",
        "epoch": 3,
        "round": 1,
        "partition": 0,
        "attempt_id": 77,
    }
    return pb.StageHeader(**given | changes)


def opening(alive: Alive, grant: str = "grant.9", **changes: Any) -> pb.OpenRunRequest:
    given = {"run": alive.run, "incarnation": alive.incarnation, "protocol_version": PROTOCOL_VERSION}
    return pb.OpenRunRequest(grant=grant, **given | changes)


def assigning(alive: Alive, *states: str, run: pb.Run | None = None, version: int = 99) -> pb.AssignRequest:
    by = run or alive.run
    assignments = [
        pb.StateAssignment(
            descriptor=descriptor_to_proto(descriptor(state=state, query=by.query, topic_id=f"id-{state}")),
            key_groups=range(KEY_GROUPS),
        )
        for state in states
    ]
    return pb.AssignRequest(run=by, assignment_version=version, states=assignments, wait_ms=1000)


def releasing(alive: Alive, state: str = "counts", run: pb.Run | None = None, version: int = 0) -> pb.ReleaseRequest:
    return pb.ReleaseRequest(
        run=run or alive.run, state=state, key_groups=range(KEY_GROUPS), assignment_version=version or alive.version
    )


def committing(alive: Alive, **changes: Any) -> pb.CommitRequest:
    given = {"run": alive.run, "incarnation": alive.incarnation, "assignment_version": alive.version, "epoch": 3}
    return pb.CommitRequest(**given | changes)


def older(alive: Alive) -> pb.Run:
    return pb.Run(application="app", query="main", generation=0, run_id="older")


def twin(alive: Alive) -> pb.Run:
    return alive.of(run_id="twin")


def newer(alive: Alive) -> pb.Run:
    return alive.of(generation=alive.run.generation + 1, run_id="newer")


def unknown(alive: Alive) -> pb.Run:
    return alive.of(query="unknown")


def not_staged(alive: Alive) -> pb.CommitRequest:
    return committing(alive, states=[pb.StateCommit(state="counts", winners=[pb.Winner(partition=5, attempt_id=5)])])


def base(alive: Alive, **changes: Any) -> pb.ReadBaseRequest:
    given = {"run": alive.run, "incarnation": alive.incarnation, "assignment_version": alive.version}
    return pb.ReadBaseRequest(state="counts", epoch=3, **given | changes)


def retiring(query: str = "main", run: pb.Run | None = None) -> pb.RetireQueryRequest:
    return pb.RetireQueryRequest(application="app", query=query, run=run)


Request = Callable[[Alive], Any]
_ROWS = ipc(dict(list(ONE.items())[:1]))

REFUSALS: list[tuple[str, Request, type[KeyholeError] | tuple[type[KeyholeError], ...]]] = [
    ("OpenRun", lambda of: opening(of, protocol_version=PROTOCOL_VERSION + 1), ProtocolMismatch),
    ("OpenRun", lambda of: opening(of, incarnation="another"), NotReady),
    ("OpenRun", lambda of: opening(of, run=newer(of), incarnation="another"), NotReady),
    ("OpenRun", lambda of: opening(of, run=unknown(of), incarnation="another"), NotReady),
    ("OpenRun", lambda of: opening(of, run=older(of)), Fenced),
    ("OpenRun", lambda of: opening(of, run=twin(of)), Fenced),
    ("OpenRun", lambda of: opening(of, grant="an earlier one.0"), StageLost),
    *[
        ("Assign", lambda of, run=run, error=error: assigning(of, "counts", run=run(of)), error)
        for run, error in ((older, Fenced), (twin, Fenced), (newer, NotReady), (unknown, NotReady))
    ],
    ("Assign", lambda of: assigning(of, "counts", version=0), NotOwner),
    *[
        ("Release", lambda of, run=run: releasing(of, run=run(of)), error)
        for run, error in ((older, Fenced), (twin, Fenced), (newer, NotReady), (unknown, NotReady))
    ],
    ("Release", lambda of: releasing(of, "unknown"), NotOwner),
    *[
        ("Stage", lambda of, run=run: (header(of, run=run(of)), _ROWS), error)
        for run, error in ((older, Fenced), (twin, Fenced), (newer, NotReady), (unknown, NotReady))
    ],
    ("Stage", lambda of: (header(of, incarnation="another"), _ROWS), NotReady),
    ("Stage", lambda of: (header(of, assignment_version=99), _ROWS), NotOwner),
    ("Stage", lambda of: (header(of, state="unknown"), _ROWS), NotOwner),
    ("Stage", lambda of: (header(of, round=0), _ROWS), StageLost),
    ("Stage", lambda of: (header(of), b"no Arrow stream"), MalformedRequest),
    *[
        ("Commit", lambda of, run=run: committing(of, run=run(of)), error)
        for run, error in ((older, Fenced), (twin, Fenced), (newer, NotReady), (unknown, NotReady))
    ],
    ("Commit", lambda of: committing(of, incarnation="another"), NotReady),
    ("Commit", lambda of: committing(of, assignment_version=99), NotOwner),
    ("Commit", lambda of: committing(of, states=[pb.StateCommit(state="unknown")]), NotOwner),
    ("Commit", not_staged, StageLost),
    *[
        ("Confirm", lambda of, run=run: pb.ConfirmRequest(run=run(of), assignment_version=of.version), error)
        for run, error in ((older, Fenced), (twin, Fenced), (newer, NotReady), (unknown, NotReady))
    ],
    ("Confirm", lambda of: pb.ConfirmRequest(run=of.run, assignment_version=99, alone=True), NotReady),
    ("ReadBase", lambda of: base(of, run=older(of)), Fenced),
    ("ReadBase", lambda of: base(of, incarnation="another"), NotReady),
    ("ReadBase", lambda of: base(of, assignment_version=99), NotOwner),
    ("RetireQuery", lambda of: retiring(), StillRunning),
    ("RetireQuery", lambda of: retiring(""), StillRunning),
    ("RetireQuery", lambda of: retiring(run=older(of)), Fenced),
    ("RetireQuery", lambda of: retiring("another", run=of.run), MalformedRequest),
]


def everything(alive: Alive) -> object:
    """As `snapshot`, and what is staged, and whether the server calls itself ready."""
    registry = alive.world.servers["a"]._registry
    hosts = {
        name: (
            host.attempts.names(),
            set(host.attempts.held()),
            host.alone,
            host._grant._writer,
            host._ownership.take_overs.current,
        )
        for name, host in registry.hosts.items()
    }
    return snapshot(alive.world), hosts, registry.ready, dict(registry._last_runs)


@pytest.mark.parametrize(
    ("method", "request_of", "error"), REFUSALS, ids=[f"{name}-{n}" for n, (name, *_) in enumerate(REFUSALS)]
)
def test_a_message_that_is_refused_changes_nothing(
    alive: Alive, method: str, request_of: Request, error: type[KeyholeError]
) -> None:
    before = everything(alive)
    with pytest.raises(error):
        alive.ask(method, request_of(alive))
    assert everything(alive) == before
    assert alive.world.run_epoch(2, ONE).epoch == 3
    assert sums(alive.world) == [3.0] * len(ONE)


@pytest.mark.parametrize(("which", "error"), [("ending", Draining), ("replica", Unsupported)])
def test_nor_does_one_that_comes_to_a_server_which_takes_no_run(
    alive: Alive, which: str, error: type[KeyholeError]
) -> None:
    registry = alive.world.servers["a"]._registry
    setattr(registry, which, True)
    before = everything(alive)
    for run in (newer(alive), unknown(alive)):
        with pytest.raises(error):
            alive.ask("OpenRun", opening(alive, run=run))
    assert everything(alive) == before


def test_an_assignment_with_a_state_of_another_query_opens_none_of_its_states(alive: Alive) -> None:
    """As where the control topic was deleted under the query that runs."""
    second = alive.of(query="second")
    alive.world.kafka.ensure("keyhole.app.before", KEY_GROUPS)
    alive.ask("OpenRun", opening(alive, run=second))
    before = dict(alive.world.servers["a"].tables)
    with pytest.raises(StateConflict, match="fed by query 'main'"):
        alive.ask("Assign", assigning(alive, "before", "counts", run=second))
    assert alive.world.servers["a"].tables == before
    assert alive.world.run_epoch(2, ONE).epoch == 3
