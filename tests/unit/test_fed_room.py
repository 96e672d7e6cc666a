"""The memory for updates that are applied and not committed is one of a whole server, and no state takes another's."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.errors import KafkaUnreachable
from services.state_server.write.fed_room import ROW_BYTES, FedRoom
from tests.support.examples import examples
from tests.support.fed_hosts import STATE, Fed, begun, closed
from tests.support.states import KEY_GROUPS, names_in

_POLL = 40


def test_a_state_that_is_alone_has_all_of_it_and_not_more() -> None:
    room = FedRoom(100)
    assert [room.may_read("a", held) for held in (0, 50, 99, 100, 150)] == [True, True, True, False, False]


def test_of_two_each_has_its_share_and_what_is_common_is_whose_comes() -> None:
    room = FedRoom(100)
    assert room.may_read("b", 0)
    assert [room.may_read("a", held) for held in (74, 75, 400)] == [True, False, False]
    assert [room.may_read("b", held) for held in (25, 26)] == [True, False], "what is common is taken"
    room.leave("a")
    assert room.may_read("b", 99), "what has gone holds nothing, and has no share"
    assert room.held_bytes == 99


def test_one_that_holds_nothing_is_read_however_small_the_room_is() -> None:
    room = FedRoom(1)
    assert not room.may_read("a", 1_000)
    assert room.may_read("b", 0)


@settings(deadline=None, max_examples=examples(100))
@given(
    st.integers(1, 6),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, _POLL), st.sampled_from(["read", "read", "commit"]))),
)
def test_the_states_of_a_server_hold_no_more_than_its_room_whatever_becomes_of_their_commits(
    states: int, all_there: bool, steps: list[tuple[int, int, str]]
) -> None:
    """The first one never commits."""
    room, held = FedRoom(1_000), dict[int, int]()
    if all_there:
        held = dict.fromkeys(range(states), 0)
        for state in held:
            room.may_read(state, 0)
    for number, size, step in [*steps, *((0, _POLL, "read") for _ in range(30)), *steps]:
        state = number % states
        if step == "commit" and state:
            held[state] = 0
        if room.may_read(state, held.setdefault(state, 0)):
            held[state] += size
        most = 1_000 if all_there else 1_500
        assert sum(held.values()) <= most + _POLL * states
        assert room.may_read(state, held[state]) or held[state] > 1_000 // 2 // states


def one_more_poll_each(feds: list[Fed]) -> None:
    """Each has more to read than all the room takes, one record at a time."""
    for fed in feds:
        for name in names_in(0, 40):
            fed.add(name, 1)
        tail: Any = fed.host.feeding._tail
        tail.most = 1


async def test_a_query_whose_commits_fail_keeps_no_other_from_being_read() -> None:
    stuck, well = await begun(), await begun()
    room = FedRoom(20 * ROW_BYTES)
    for fed in (stuck, well):
        object.__setattr__(fed.host.feeding._settings, "fed_room", room)
        await fed.steps()
    one_more_poll_each([stuck, well])

    def away() -> None:
        raise KafkaUnreachable("no transactions for now")

    stuck.kafka.before_commit = away
    await stuck.steps(60)
    held = stuck.host.feeding.fed[0].held_bytes
    assert stuck.host.feeding.fed[0].progress.full
    assert room.held_bytes <= 15 * ROW_BYTES + held, "its share, and what is common"
    for _ in range(20):
        well.clock.advance(1.0)
        await well.steps(5)
        assert room.held_bytes <= 24 * ROW_BYTES, "both together"
    assert len([of for of in well.sums(names_in(0, 40)) if of is not None]) == 40
    stuck.kafka.before_commit = lambda: None
    for _ in range(20):
        stuck.clock.advance(2.0)
        await stuck.steps(5)
    assert len([of for of in stuck.sums(names_in(0, 40)) if of is not None]) == 40
    assert not stuck.host.feeding.fed[0].progress.full
    await closed(stuck)
    await well.host.release(well.run, STATE, frozenset(range(KEY_GROUPS)), well.version)
    await well.steps(1)
    assert room.held_bytes == 0
    assert room._held == {}, "a query that is closed, or owns nothing, has no share"
    await closed(well)
