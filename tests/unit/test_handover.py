"""Servers come, go and drain, and every key can be read all the time: the real driver and servers, step by step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import msgspec
import pytest

from keyhole.coordinator.waiting import await_server
from keyhole.errors import NotOwner, NotReady
from keyhole.protocol.control import QueryControl, read_control
from keyhole.protocol.membership import owners_of
from keyhole.testing.changelog import MemoryChangelog
from tests.support.simulation import Fault, Letter, SimulatedFleet, World
from tests.support.states import KEY_GROUPS, descriptor, key, names_in, row

KEYS = [key(names_in(group)[0]) for group in range(KEY_GROUPS)]


@pytest.fixture(params=[0, 1], ids=["without standbys", "with one standby"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Two servers, and a third one that is down."""
    made = World(descriptor(), "abc", request.param)
    made.servers["c"].die()
    yield made
    made.close()


@pytest.fixture
def standing_by() -> Iterator[World]:
    """Three servers; one standby for each key group, and all of them warm."""
    made = World(descriptor(), "abc", 1)
    made.run_epoch(0, rows(1.0))
    made.settle()
    yield made
    made.close()


def rows(n: float) -> dict[bytes, bytes | None]:
    return {name: row(n) for name in KEYS}


def owned(world: World, server: str) -> tuple[int, ...]:
    assert world.coordinator is not None
    return world.coordinator.owned_by(server, "counts")


def owned_most(world: World) -> Callable[[str], int]:
    return lambda server: len(owned(world, server))


def readable(world: World, name: bytes) -> dict[str, bytes | None]:
    """What the copies of a key hold, by server."""
    found = {}
    for server in world.servers.values():
        for table in server.tables.values() if server.servicer is not None else ():
            with contextlib.suppress(NotOwner, NotReady):
                (found[server.name],) = table.lookup([name]).rows
    return found


def every_key_can_be_read(world: World, n: float) -> None:
    for group, name in enumerate(KEYS):
        answers = readable(world, name)
        assert answers, f"nobody answers for key group {group}"
        assert set(answers.values()) == {row(n)}


def control(world: World) -> QueryControl:
    log = MemoryChangelog(world.kafka, "app").control("reader")
    return read_control(log.read(1.0), "main")


def test_a_server_that_comes_takes_its_share_over_while_every_key_can_be_read(world: World) -> None:
    world.run_epoch(0, rows(1.0))
    world.settle()
    world.servers["c"].start()
    world.after_each = lambda: every_key_can_be_read(world, 1.0)
    world.settle()
    assert sorted(len(owned(world, name)) for name in "abc") == [1, 1, 2]


def test_a_server_that_comes_is_given_nothing_before_its_copy_is_warm(world: World) -> None:
    world.run_epoch(0, rows(1.0))
    world.settle()
    world.servers["c"].start()
    world.beat()
    world.run_epoch(1, rows(2.0))
    world.beat()
    assert owned(world, "c") == ()
    world.servers["c"].follow()
    world.beat()
    assert owned(world, "c") != ()
    world.follow()
    every_key_can_be_read(world, 2.0)


def test_a_server_that_comes_takes_over_between_two_epochs_of_a_busy_query(world: World) -> None:
    world.run_epoch(0, rows(1.0))
    world.servers["c"].start()
    for number in range(1, 6):
        world.follow()
        assert world.coordinator is not None
        world.coordinator._run.confirm()  # as the heartbeat does while an epoch is under way
        assert world.run_epoch(number, rows(1.0 + number)).rounds == 1
    assert len(owned(world, "c")) >= 1
    world.follow()
    every_key_can_be_read(world, 6.0)


def test_a_key_group_is_on_record_for_and_told_to_its_next_owner_only_after_the_last_one_has_answered_release(
    world: World,
) -> None:
    world.run_epoch(0, rows(1.0))
    world.settle()
    before = {group: name for name in "ab" for group in owned(world, name)}
    seen: list[tuple[Letter, dict[int, str]]] = []
    world.after_each = lambda: seen.append((world.answered[-1], recorded_owners(world)))
    world.servers["c"].start()
    world.settle()
    assert owned(world, "c")
    for group in owned(world, "c"):
        released = [
            at
            for at, (letter, _) in enumerate(seen)
            if (letter.server, letter.method) == (before[group], "Release") and group in letter.request.key_groups
        ]
        adopted = [
            at
            for at, (letter, _) in enumerate(seen)
            if (letter.server, letter.method) == ("c", "Assign") and group in letter.request.states[0].key_groups
        ]
        assert len(released) == 1
        assert {owners[group] for _, owners in seen[: released[0] + 1]} == {before[group]}
        assert released[0] < adopted[0]
        assert seen[adopted[0]][1][group] == "c"


def recorded_owners(world: World) -> dict[int, str]:
    assignment = control(world).assignment
    return owners_of(assignment, "counts") if assignment is not None else {}


def test_a_server_that_is_told_to_end_gives_everything_away_while_every_key_can_be_read(world: World) -> None:
    world.run_epoch(0, rows(1.0))
    world.settle()
    world.servers["a"].end()
    assert not world.servers["a"].may_end
    world.after_each = lambda: every_key_can_be_read(world, 1.0)
    world.settle()
    assert owned(world, "a") == ()
    assert world.servers["a"].may_end
    world.servers["a"].die()
    every_key_can_be_read(world, 1.0)
    world.after_each = lambda: None
    assert world.run_epoch(1, rows(2.0)).rounds == 1


def test_a_server_that_is_told_to_end_goes_on_taking_epochs_until_it_is_relieved(world: World) -> None:
    world.run_epoch(0, rows(1.0))
    world.servers["a"].end()
    assert world.run_epoch(1, rows(2.0)).rounds == 1
    assert world.run_epoch(2, rows(3.0)).rounds == 1


def test_the_last_server_that_is_told_to_end_is_kept_by_nobody(world: World) -> None:
    world.servers["b"].die()
    world.run_epoch(0, rows(1.0))
    world.servers["a"].end()
    assert not world.servers["a"].may_end
    world.settle()
    assert world.servers["a"].may_end


def test_a_server_that_is_told_to_end_is_relieved_by_one_that_drains_and_goes_on_where_there_is_no_other(
    world: World,
) -> None:
    world.run_epoch(0, rows(1.0))
    world.settle()
    world.servers["b"].drain()
    world.servers["a"].end()
    world.beat()  # with a warm standby, it has handed over by then
    assert not (world.servers["a"].may_end and owned(world, "a"))
    world.after_each = lambda: every_key_can_be_read(world, 1.0)
    world.settle()
    assert (owned(world, "a"), len(owned(world, "b"))) == ((), KEY_GROUPS)
    assert world.servers["a"].may_end
    world.servers["c"].start()
    world.settle()
    assert len(owned(world, "c")) == KEY_GROUPS


def test_where_all_servers_drain_and_go_on_a_job_begins_on_them(world: World) -> None:
    world.run_epoch(0, rows(1.0))
    for name in "ab":
        world.servers[name].drain()
    assert world.run_epoch(1, rows(2.0)).rounds == 1
    world.driver_dies()
    for name in "ab":
        world.servers[name].die()
        world.servers[name].start()
        world.servers[name].drain()
    assert await_server(world.config, "main", ["counts"], SimulatedFleet(world), world.clock) is False
    assert world.run_epoch(2, rows(3.0)).epoch == 3
    assert {*owned(world, "a"), *owned(world, "b")} == set(range(KEY_GROUPS))
    world.follow()
    every_key_can_be_read(world, 3.0)
    world.servers["a"].drain(undo=True)
    world.settle()
    assert owned(world, "b") == ()


def test_a_lost_servers_key_groups_go_to_their_warm_standbys(standing_by: World) -> None:
    world = standing_by
    lost = owned(world, "a")
    heirs = {group: set(readable(world, KEYS[group])) - {"a"} for group in lost}
    world.servers["a"].die()
    world.after_each = lambda: every_key_can_be_read(world, 1.0)
    world.beat()
    for group, heir in heirs.items():
        assert len(heir) == 1
        assert group in owned(world, heir.pop())


def test_a_handover_that_breaks_off_after_release_is_undone_under_another_version(standing_by: World) -> None:
    world = standing_by
    world.servers["a"].end()
    before = owned(world, "a")
    version = control(world).assignment
    world.faults_at["a", "Release"] = Fault.ANSWER_IS_LOST
    world.beat(seconds=-1.0)
    world.servers["a"].unend()
    for name in "bc":
        world.servers[name].die()
    assert not world.faults_at
    assert world.run_epoch(1, rows(2.0)).epoch == 2
    assert set(before) <= set(owned(world, "a"))
    after = control(world).assignment
    assert version is not None
    assert after is not None
    assert after.version > version.version
    every_key_can_be_read(world, 2.0)


@pytest.mark.parametrize(
    "fault", [Fault.SERVER_DIES, Fault.SERVER_DIES_AFTER, Fault.SERVER_LOSES_ITS_STORE], ids=lambda fault: fault.name
)
def test_a_server_that_is_killed_while_it_drains_and_goes_on_loses_nothing(standing_by: World, fault: Fault) -> None:
    world = standing_by
    world.servers["a"].drain()
    world.faults_at["a", "Release"] = fault
    world.after_each = lambda: every_key_can_be_read(world, 1.0)  # by standbys meanwhile
    world.settle()
    assert not world.faults_at
    assert owned(world, "a") == ()
    world.after_each = lambda: None
    assert world.run_epoch(1, rows(2.0)).epoch == 2
    # A process that comes in its place has not been asked.
    world.servers["a"].start()
    world.settle()
    assert owned(world, "a") != ()
    every_key_can_be_read(world, 2.0)


def test_a_key_group_that_was_moved_goes_there_and_stays_while_every_key_can_be_read(world: World) -> None:
    world.servers["c"].start()
    world.run_epoch(0, rows(1.0))
    world.settle()
    to, moved = min("abc", key=lambda name: len(owned(world, name))), owned(world, max("abc", key=owned_most(world)))
    world.servers[to].move("counts", *moved)
    world.after_each = lambda: every_key_can_be_read(world, 1.0)
    world.settle()
    assert set(moved) <= set(owned(world, to))
    world.after_each = lambda: None
    assert world.run_epoch(1, rows(2.0)).rounds == 1
    # Who is lost forgets it: what was moved there is shared again.
    world.servers[to].die()
    assert world.run_epoch(2, rows(3.0)).epoch == 3
    world.servers[to].start()
    world.settle()
    assert sorted(len(owned(world, name)) for name in "abc") == [1, 1, 2]
    every_key_can_be_read(world, 3.0)


def test_a_server_that_drains_gives_away_what_was_moved_to_it_and_gets_it_again_behind_that(standing_by: World) -> None:
    world = standing_by
    wanted = tuple(range(KEY_GROUPS))
    world.servers["a"].move("counts", *wanted)
    world.settle()
    assert owned(world, "a") == wanted
    world.servers["a"].drain()
    world.settle()
    assert owned(world, "a") == ()
    world.servers["a"].drain(undo=True)
    world.settle()
    assert owned(world, "a") == wanted
    world.servers["a"].move("counts", *wanted, undo=True)
    world.settle()
    assert sorted(len(owned(world, name)) for name in "abc") == [1, 1, 2]
    every_key_can_be_read(world, 1.0)


@pytest.mark.parametrize(
    "fault", [Fault.SERVER_DIES, Fault.SERVER_DIES_AFTER, Fault.SERVER_LOSES_ITS_STORE], ids=lambda fault: fault.name
)
@pytest.mark.parametrize("step", ["Release", "Assign"])
def test_an_owner_that_is_killed_while_its_key_groups_move_loses_nothing(
    standing_by: World, fault: Fault, step: str
) -> None:
    world = standing_by
    world.servers["b"].move("counts", *range(KEY_GROUPS))
    world.faults_at["a", step] = fault
    world.after_each = lambda: every_key_can_be_read(world, 1.0)  # by standbys meanwhile
    world.settle()
    assert not world.faults_at
    world.after_each = lambda: None
    assert world.run_epoch(1, rows(2.0)).epoch == 2
    world.servers["a"].start()
    world.settle()
    assert owned(world, "b") == tuple(range(KEY_GROUPS))
    every_key_can_be_read(world, 2.0)


def test_what_was_released_unheard_is_owned_again_before_the_next_epoch(standing_by: World) -> None:
    world = standing_by
    world.servers["a"].end()
    world.faults_at["a", "Release"] = Fault.ANSWER_IS_LOST
    world.beat(seconds=-1.0)
    world.servers["a"].unend()
    assert not world.faults_at
    world.beat()
    every_key_can_be_read(world, 1.0)
    # Nobody has to be staged to again because it owns less than the assignment says.
    assert world.run_epoch(1, rows(2.0)).rounds == 1
    world.follow()
    every_key_can_be_read(world, 2.0)


def test_the_records_say_who_follows_and_when_they_were_told(standing_by: World) -> None:
    world = standing_by
    recorded = control(world)
    assert recorded.assignment is not None
    assert recorded.assignment.generation == recorded.generation == 1
    assert all(len(of) == 1 for of in recorded.assignment.standbys["counts"])
    assert recorded.complete is not None
    assert recorded.complete.told_ms == world.clock.now_ms()
    world.clock.advance(1.0)
    world.beat()
    again = control(world).complete
    assert again is not None
    assert again == msgspec.structs.replace(recorded.complete, told_ms=world.clock.now_ms())
