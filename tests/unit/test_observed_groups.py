"""What watches the key groups of servers notes what contradicts their states, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from keyhole.changelog.base import Partition, RestoredEpochs
from keyhole.errors import KafkaUnreachable
from keyhole.model.epoch import START, Position
from keyhole.protocol.key_group import KeyGroupState
from keyhole.stores.base import Advance, Batch
from keyhole.testing.changelog import MemoryReader
from services.state_server.replica.hosted import StateReplica
from services.state_server.replica.key_groups import KeyGroups
from tests.fault import hooks
from tests.fault.history import Contradiction
from tests.support.hosts import Hosted
from tests.support.observed_groups import GroupWatch
from tests.support.states import hosted, key, names_in, row, standing

NAME = key(names_in(1)[0])
AFTER = Position(2, 1, 1, 0)
WRITE = Batch(puts=[(NAME, row(1.0))], advances={1: Advance(START, AFTER)})


@pytest.fixture
def watch() -> Iterator[GroupWatch]:
    watch = GroupWatch()
    watch.begin()
    yield watch
    watch.end()


def _unreachable(*_: object) -> None:
    raise KafkaUnreachable("no answer")


def absent() -> StateReplica:
    return hosted(restored=())


def followed() -> StateReplica:
    state = absent()
    state.groups.follow({1}, assigned=(), at_once=())
    return state


async def test_a_server_that_does_as_it_should_is_left_alone(watch: GroupWatch) -> None:
    server = Hosted()
    await server.own()
    await server.apply(1, {NAME: row(1.0)})
    assert server.read(NAME) == [row(1.0)]
    await server.host.release(server.run, "counts", frozenset({1}), server.version)
    await server.open(2, "grant-2")
    assert await server.assign(complete=1)
    watch.check_at_rest(server.host)
    assert (watch.violations, watch.compared > 5) == ([], True)
    assert watch.transitions[KeyGroupState.OWNER, KeyGroupState.RELEASED] == 1
    await server.host.close()


async def test_what_is_told_is_held_against_the_states(watch: GroupWatch) -> None:
    server = Hosted()
    await server.own()
    await server.host._thread.call(server.host._states.state("counts").groups.follow, {1}, (), {1})
    watch.check_at_rest(server.host)
    assert watch.violations == [
        "key group 1 is released, and answered for as an owner",
        "key group 1 is released, and not to be followed",
    ]
    await server.host.close()


async def test_what_is_not_restored_yet_is_not_told_as_ready(
    watch: GroupWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Hosted()
    await server.own()
    monkeypatch.setattr(MemoryReader, "ends", _unreachable)
    await server.open(2, "grant-2")
    server.table.given.release(frozenset({1}))
    with pytest.raises(KafkaUnreachable):
        await server.assign(complete=1)
    watch.check_at_rest(server.host)
    assert watch.violations == []
    assert not server.table.given.ready
    await server.host.close()


def test_the_sets_say_what_the_states_say(watch: GroupWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyGroups, "lose_grant", lambda self: None)
    state = hosted(restored={1})
    assert watch.violations == []
    state.groups.lose_grant()
    (found,) = watch.violations
    assert found.startswith("after lose_grant, owned is {1} by")


def test_an_illegal_transition_is_noted_beside_being_refused(watch: GroupWatch) -> None:
    state = absent()
    with pytest.raises(AssertionError):
        state.groups.restored({1})
    assert watch.violations == ["key group 1 goes from absent to owner"]


def test_only_an_owner_is_written_by_an_epoch(watch: GroupWatch) -> None:
    hosted(restored={1}).apply(WRITE)
    assert watch.violations == []
    followed().apply(WRITE)
    assert watch.violations == ["key group 1 is catching up, and written by an epoch"]


def test_only_what_is_followed_or_restored_is_read_back(watch: GroupWatch) -> None:
    piece = RestoredEpochs(Partition("counts", 1), [(NAME, row(1.0))], AFTER, None, 1, 10)
    followed().apply_pieces([piece])
    assert watch.violations == []
    hosted(restored={1}).apply_pieces([piece])
    absent().apply_pieces([piece])
    assert watch.violations == ["key group 1 is owner, and read back", "key group 1 is absent, and read back"]


def test_an_owner_answers_and_no_standby_as_one(watch: GroupWatch) -> None:
    owner, standby = hosted(restored={1}), followed()
    standby.groups.reached_the_end(1)
    for state in (owner, standby):
        state.table.publish(state.store.snapshot(), frozenset({1}), standing(1), {})
        state.table.lookup([NAME])
    assert watch.violations == ["key group 1 is standby, and answered for as an owner"]


def test_what_a_servers_process_notes_is_in_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "server-1.groups"
    monkeypatch.setenv("FAULT_GROUPS", str(file))
    watch = hooks.watch_key_groups()
    assert watch is not None
    assert file.read_bytes() == b""
    followed().apply(WRITE)
    watch.end()
    noted = msgspec.json.decode(file.read_bytes(), type=Contradiction)
    assert (noted.name, noted.text) == ("server-1", "key group 1 is catching up, and written by an epoch")


def test_what_is_opened_before_or_after_is_not_watched(watch: GroupWatch) -> None:
    watch.end()
    followed().apply(WRITE)
    assert (watch.violations, watch.compared) == ([], 0)
