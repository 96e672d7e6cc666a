"""A query that is over is forgotten: what is left of it on the server, who may say so, and what it meets under way."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from keyhole.encoding.codec import EntryRange, StateCodec
from keyhole.errors import (
    Fenced,
    MalformedRequest,
    NotReady,
    StageLost,
    StillRunning,
    UnknownApplication,
    UnknownState,
)
from keyhole.model.epoch import NO_EPOCH, Run
from keyhole.model.state import KeyColumn, KeyType, StateKind
from keyhole.protocol.failpoints import Step
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.v1 import state_server_pb2 as pb
from services.state_server.fence import LastRun
from services.state_server.registry import Registry
from services.state_server.replica.take_over import StateShare
from tests.support.hosts import INCARNATION, Hosted
from tests.support.simulation import World
from tests.support.states import KEY_GROUPS, descriptor, key, names_in, row
from tests.support.waiting import LONG_SECONDS
from tests.unit.test_host import Gate, SlowChangelog

KEYS = [key(names_in(group)[0]) for group in range(KEY_GROUPS)]
ROWS = {name: row(1.0) for name in KEYS}
A = KEYS[0]


@pytest.fixture
def world() -> Iterator[World]:
    """Two servers, and a state whose rows replace each other."""
    made = World(descriptor(), "ab")
    yield made
    made.close()


def retire(world: World, server: str, query: str = "main", run: Run | None = None) -> dict[str, list[str]]:
    servicer = world.servers[server].servicer
    assert servicer is not None
    request = pb.RetireQueryRequest(application="app", query=query)
    if run is not None:
        request.run.MergeFrom(pb.Run(application="app", query="main", generation=run.generation, run_id=run.run_id))
    answer = world.run(servicer.RetireQuery(request, None))  # type: ignore[arg-type]  # it needs no context
    return {of.query: list(of.states) for of in answer.queries}


def run_of(world: World) -> Run:
    assert world.coordinator is not None
    return world.coordinator._run.run


def values(world: World) -> list[bytes | None]:
    """Of each key group's key, as its owner has it."""
    assert world.coordinator is not None
    found: dict[int, bytes | None] = {}
    for name, server in world.servers.items():
        for group in world.coordinator.owned_by(name, "counts"):
            (found[group],) = server.tables["app", "counts"].lookup([KEYS[group]]).rows
    return [found[group] for group in range(KEY_GROUPS)]


# --- who may, and what is left ----------------------------------------------------------------------------------------


def test_a_query_is_not_retired_by_others_while_its_run_is_alive(world: World) -> None:
    world.run_epoch(0, ROWS)
    with pytest.raises(StillRunning, match=r"query 'main' of application app is running.*End the job first"):
        retire(world, "a")
    with pytest.raises(StillRunning):
        retire(world, "a", query="")
    assert values(world) == list(ROWS.values())
    world.run_epoch(1, ROWS)


def test_a_query_whose_job_has_ended_is_forgotten_with_its_stores_and_readers_are_told(world: World) -> None:
    world.run_epoch(0, ROWS)
    world.driver_dies()
    world.clock.advance(3.1)
    a = world.servers["a"]
    change = a._registry.next_change()
    assert retire(world, "a") == {"main": ["counts"]}
    assert change.is_set()
    assert not a._registry.ownership().holdings
    assert not a._registry.hosts
    assert not a._registry.ready
    with pytest.raises(UnknownApplication, match="server a holds nothing of application 'app'"):
        a._registry.table("app", "counts")
    store = a._engine.open("app", "counts", world.kafka.topic_id(world.descriptor.topic) or "")
    assert store.size().entries == 0
    store.close()
    # The other server was not asked, and goes on.
    assert world.servers["b"].tables["app", "counts"].groups


def test_to_retire_what_is_not_there_is_no_error(world: World) -> None:
    world.run_epoch(0, ROWS)
    run = run_of(world)
    world.driver_dies()
    world.clock.advance(3.1)
    for _ in range(2):
        retire(world, "a")
    assert retire(world, "a") == retire(world, "a", run=run) == retire(world, "a", query="none") == {}
    servicer = world.servers["a"].servicer
    assert servicer is not None
    with pytest.raises(MalformedRequest):
        world.run(servicer.RetireQuery(pb.RetireQueryRequest(), None))  # type: ignore[arg-type]  # as above
    with pytest.raises(MalformedRequest):
        retire(world, "a", query="another", run=run)


def test_a_later_run_of_a_retired_query_restores_all_that_was_committed(world: World) -> None:
    world.run_epoch(0, ROWS)
    world.driver_dies()
    world.clock.advance(3.1)
    for name in world.servers:
        retire(world, name)
    world.run_epoch(1, {A: row(2.0)})
    assert values(world) == [row(2.0), row(1.0), row(1.0), row(1.0)]


def test_a_run_may_say_of_itself_that_it_is_over_and_another_one_may_not(world: World) -> None:
    world.run_epoch(0, ROWS)
    first = run_of(world)
    world.suspend_driver()
    world.run_epoch(1, ROWS)
    with pytest.raises(Fenced):
        retire(world, "a", run=first)
    later = Run("app", "main", first.generation + 5, "later")
    with pytest.raises(NotReady):
        retire(world, "a", run=later)
    assert retire(world, "a", run=run_of(world)) == {"main": ["counts"]}


def test_a_run_that_goes_on_after_its_query_was_retired_takes_it_up_again(world: World) -> None:
    world.run_epoch(0, ROWS)
    for name in world.servers:
        retire(world, name, run=run_of(world))
    world.beat()
    assert values(world) == list(ROWS.values())
    world.run_epoch(1, {A: row(2.0)})
    assert values(world) == [row(2.0), row(1.0), row(1.0), row(1.0)]


async def test_other_queries_of_the_application_go_on(hosted: Hosted, registry: Registry) -> None:
    await hosted.own()
    await hosted.apply(1, {A: row(1.0)})
    other, run = descriptor(state="others", query="other"), Run("app", "other", 1, "run-1")
    MemoryChangelog(hosted.kafka, "app").admin().ensure(other, 5)
    host = registry.host_for(run, "grant", lambda name: MemoryChangelog(hosted.kafka, name), hosted.host._settings)
    await host.open_run(run, INCARNATION, "grant")
    share = StateShare(other, frozenset(range(KEY_GROUPS)))
    assert await host.assign(run, 1, [share], hosted.table.standing.stamp, 5.0)
    assert await registry.retire("app", "main", hosted.run) == {"main": ["counts"]}
    assert list(registry.tables) == [("app", "others")]
    assert registry.table("app", "others").lookup([A]).rows == [None]
    with pytest.raises(UnknownState, match="application app has no state 'counts' on server server-a; it has others"):
        registry.table("app", "counts")


# --- nobody says so, and nobody needs it ------------------------------------------------------------------------------


def looks_for_idle(world: World, server: str) -> bool:
    """As the server does every second. Returns whether it has forgotten the query."""
    registry = world.servers[server]._registry

    async def look() -> bool:
        registry.forget_idle()
        if registry._leaving:
            await asyncio.wait(registry._leaving.values())
        return not registry.hosts

    return world.run(look())


def test_a_query_that_is_over_and_has_left_a_server_nothing_is_forgotten_there(world: World) -> None:
    world.run_epoch(0, ROWS)
    world.settle()
    a = world.servers["a"]
    a.drain()
    world.settle()
    a._registry.draining = False
    assert not a.tables["app", "counts"].given.assigned
    assert not looks_for_idle(world, "a"), "it may be given key groups again"
    world.driver_dies()
    world.clock.advance(3.1)
    assert looks_for_idle(world, "a")
    assert not looks_for_idle(world, "b"), "it has key groups to answer for"
    store = a._engine.open("app", "counts", world.kafka.topic_id(world.descriptor.topic) or "")
    assert store.size().entries > 0, "what is on disk stays"
    store.close()
    world.run_epoch(1, {A: row(2.0)})
    assert values(world) == [row(2.0), row(1.0), row(1.0), row(1.0)]


async def test_a_query_is_not_forgotten_between_its_grant_and_its_first_assignment(
    hosted: Hosted, registry: Registry
) -> None:
    await hosted.open()
    assert not hosted.host.idle
    hosted.kafka.down = True
    with pytest.raises(Exception, match="down"):
        await hosted.open(generation=2, grant="grant-2")
    # Nothing was given to it, and no grant is left: whoever goes on begins with OpenRun.
    assert hosted.host.idle
    hosted.kafka.down = False
    await registry.retire("app")


# --- what is under way ------------------------------------------------------------------------------------------------


@pytest.fixture
async def hosted() -> Hosted:
    return Hosted()


@pytest.fixture
async def registry(hosted: Hosted) -> AsyncIterator[Registry]:
    """Its only host is the hosted one."""
    made = Registry("server-a", INCARNATION, lambda: "a:1", 0, 511)
    adopt(made, hosted)
    yield made
    await made.close()


def adopt(registry: Registry, hosted: Hosted) -> None:
    registry.tables = hosted.tables
    registry._hosts["app", "main"] = hosted.host


async def test_a_commit_under_way_is_waited_for_and_a_later_run_finds_it() -> None:
    gate = Gate(Step.SERVER_BEFORE_TRANSACTION)
    hosted, registry = Hosted(observer=gate), Registry("server-a", INCARNATION, lambda: "a:1", 0, 511)
    adopt(registry, hosted)
    await hosted.own()
    commit = asyncio.ensure_future(hosted.commit(1, await hosted.stage(1, {A: row(1.0)})))
    await gate.wait()
    retiring = asyncio.ensure_future(registry.retire("app", "main", hosted.run))
    await asyncio.sleep(0)
    # Readers hear of it before its end, and nobody may begin anew before.
    assert not registry.tables
    changelog = lambda name: MemoryChangelog(hosted.kafka, name)  # noqa: E731
    with pytest.raises(NotReady, match="is forgetting query 'main'"):
        registry.host_for(hosted.run, "grant-2", changelog, hosted.host._settings)
    with pytest.raises(NotReady, match="has not been opened"):
        registry.host(hosted.run)
    gate.open.set()
    assert [group.already for group in await commit] == [False]
    assert await retiring == {"main": ["counts"]}
    again = Hosted(kafka=hosted.kafka, engine=hosted.engine)
    await again.own(generation=2, complete=1)
    assert again.read(A) == [row(1.0)]
    await again.host.close()


async def test_a_restore_counts_as_a_run_that_is_alive_and_is_stopped_by_its_own() -> None:
    before = Hosted()
    await before.own()
    await before.apply(1, ROWS)
    await before.host.close()
    changelog = SlowChangelog(before.kafka)
    hosted, registry = Hosted(kafka=before.kafka, changelog=changelog), Registry("a", INCARNATION, lambda: "", 0, 511)
    adopt(registry, hosted)
    await hosted.open(generation=2, grant="grant-2")
    changelog.gate.clear()
    assigning = asyncio.ensure_future(hosted.assign(complete=1))
    await changelog.entered()
    with pytest.raises(StillRunning):
        await registry.retire("app")
    retiring = asyncio.ensure_future(registry.retire("app", "main", hosted.run))
    await asyncio.sleep(0)
    changelog.gate.set()
    await retiring
    assert changelog.pieces < KEY_GROUPS
    with pytest.raises(NotReady):
        await assigning


async def test_a_store_that_is_being_opened_is_closed_again_and_told_of_no_more(
    hosted: Hosted, registry: Registry
) -> None:
    await hosted.open()
    held, entered = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert held.wait(LONG_SECONDS)

    hosted.host._thread.submit(hold)
    await asyncio.to_thread(entered.wait, LONG_SECONDS)
    assert not await hosted.assign(wait=0.0)
    retiring = asyncio.ensure_future(registry.retire("app", "main", hosted.run))
    await asyncio.sleep(0)
    change = registry.next_change()
    held.set()
    await retiring
    assert change.is_set()
    assert not registry.tables
    hosted.engine.open("app", "counts", "").close()


async def test_rows_that_are_still_arriving_are_refused_and_leave_nothing_behind(
    hosted: Hosted, registry: Registry
) -> None:
    await hosted.own()
    arriving = hosted.begin(1, 1)
    await hosted.host.add_rows(arriving, lambda: ([A], [row(1.0)]))
    await hosted.stage(1, {KEYS[1]: row(1.0)})
    await registry.retire("app", "main", hosted.run)
    with pytest.raises(NotReady):
        await hosted.host.add_rows(arriving, lambda: ([A], [row(1.0)]))
    with pytest.raises(NotReady):
        hosted.begin(1, 2)
    hosted.host.attempts.discard(arriving)
    assert hosted.room.memory_bytes == 0


async def test_a_scan_under_way_ends_with_not_ready(hosted: Hosted, registry: Registry) -> None:
    hosted.of = descriptor(kind=StateKind.MAP, map_key=(KeyColumn("m", KeyType.STRING),))
    await hosted.own()
    await hosted.apply(1, {StateCodec(hosted.of).storage_key((names_in(0)[0], "m")): row(1.0)})
    scanned = hosted.table.scan(EntryRange(A, A, None))
    await registry.retire("app", "main", hosted.run)
    with pytest.raises(NotReady):
        list(scanned.entries)
    scanned.close()


async def test_what_the_hosts_thread_is_at_is_waited_for(hosted: Hosted, registry: Registry) -> None:
    """As a follower's step is, of which it takes in what has come."""
    await hosted.open()
    followed = StateShare(hosted.of, frozenset(), frozenset(range(KEY_GROUPS)))
    assert await hosted.host.assign(hosted.run, 1, [followed], NO_EPOCH, 5.0)
    held, entered = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert held.wait(LONG_SECONDS)

    hosted.host._thread.submit(hold)
    await asyncio.to_thread(entered.wait, LONG_SECONDS)
    retiring = asyncio.ensure_future(registry.retire("app", "main", hosted.run))
    await asyncio.sleep(0)
    assert not retiring.done()
    held.set()
    assert await retiring == {"main": ["counts"]}


# --- what is remembered -----------------------------------------------------------------------------------------------


def test_of_a_forgotten_query_no_older_run_twin_or_used_grant_begins() -> None:
    last = LastRun(Run("app", "main", 2, "run-2"), 3)
    for older in (Run("app", "main", 1, "run-1"), Run("app", "main", 2, "twin")):
        with pytest.raises(Fenced):
            last.check(older, "grant-9")
    for serial in (2, 3):
        with pytest.raises(StageLost):
            last.check(last.run, f"grant-{serial}")
    last.check(last.run, "grant-4")
    last.check(Run("app", "main", 3, "run-3"), "grant-1")


async def test_twenty_queries_leave_no_thread_no_follower_and_no_host() -> None:
    kafka, registry, settings = MemoryKafka(), Registry("a", INCARNATION, lambda: "", 0, 511), Hosted().host._settings
    before: set[int | None] = set()
    for number in range(20):
        run, of = Run("app", f"query-{number}", 1, "run"), descriptor(state=f"s-{number}", query=f"query-{number}")
        MemoryChangelog(kafka, "app").admin().ensure(of, 5)
        host = registry.host_for(run, "grant-1", lambda name: MemoryChangelog(kafka, name), settings)
        await host.open_run(run, INCARNATION, "grant-1")
        assert await host.assign(run, 1, [StateShare(of, frozenset({0}), frozenset({1}))], NO_EPOCH, 5.0)
        with contextlib.suppress(NotReady):
            registry.tables["app", of.state].lookup([A])
        await registry.retire("app", run.query, run)
        if number == 4:
            before = {thread.ident for thread in threading.enumerate()}
    left = [thread.name for thread in threading.enumerate() if thread.ident not in before]
    assert not [name for name in left if "query-" in name], left
    assert len(left) <= 8, left  # of the pool in which asyncio waits, which is bounded
    assert not registry.hosts
    assert not registry.tables
