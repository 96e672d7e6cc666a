"""The states of a key group on a server: which may follow which, and what each means for writers and readers."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from keyhole.protocol.key_group import FOLLOWED, SHOWN, TRANSITIONS, UNSETTLED, KeyGroupState
from services.state_server.replica.key_groups import KeyGroups

S = KeyGroupState
README = Path(__file__).parents[2] / "services/state_server/README.md"
ALIAS = re.compile(r'^ +state "(\w+)" as (\w+)$', re.MULTILINE)
ARROW = re.compile(r"^ +(\w+) --> (\w+):", re.MULTILINE)


def test_every_state_can_be_reached_from_absent_and_left_for_it() -> None:
    reached, left = {S.ABSENT}, [S.ABSENT]
    while left:
        new = TRANSITIONS[left.pop()] - reached
        reached |= new
        left += new
    assert reached == set(S) == set(TRANSITIONS)
    assert all(S.ABSENT in TRANSITIONS[state] for state in S if state is not S.ABSENT)


def test_the_readmes_diagram_has_each_transition_but_those_that_it_says_are_left_out() -> None:
    """Every state's way to ABSENT, and the ways back of what is to be followed after all."""
    text = README.read_text().partition("```mermaid\nstateDiagram-v2\n")[2].partition("```")[0]
    aliases = {alias: KeyGroupState[name] for name, alias in ALIAS.findall(text)}
    names = {**{state.name: state for state in S}, **aliases}
    drawn = {(names[start], names[end]) for start, end in ARROW.findall(text)}
    back = {(S.RESTORING, S.CATCHING_UP), (S.RESTORING_SHOWN, S.STALE), (S.PROMOTED, S.RELEASED)}
    legal = {(before, after) for before, all_after in TRANSITIONS.items() for after in all_after}
    left_out = {(before, after) for before, after in legal if after is S.ABSENT and before is not S.OWNER}
    assert drawn == legal - back - left_out


def test_an_owner_is_made_by_a_restore_alone() -> None:
    assert {before for before, after in TRANSITIONS.items() if S.OWNER in after} == {S.RESTORING, S.RESTORING_SHOWN}


def test_what_is_unsettled_is_shown_and_an_owner_is_neither_followed_nor_shown_as_a_standby() -> None:
    assert UNSETTLED < SHOWN
    assert S.OWNER not in FOLLOWED | SHOWN


def owner() -> KeyGroups:
    groups = KeyGroups()
    groups.begin_restore([1])
    groups.restored([1])
    return groups


def test_a_take_over_of_a_warm_standby_shows_it_until_it_is_owned() -> None:
    groups = KeyGroups()
    assert not groups.follow({1}, assigned=(), at_once=())
    groups.reached_the_end(1)
    assert (groups.warm, groups.shown, groups.settled) == ({1}, {1}, True)
    groups.follow((), assigned={1}, at_once=())
    assert (groups.state(1), groups.warm, groups.shown, groups.settled) == (S.PROMOTED, set(), {1}, True)
    groups.retain({1})
    groups.begin_restore([1])
    assert (groups.shown, groups.settled) == ({1}, False)
    groups.restored([1])
    assert (groups.owned, groups.shown, groups.settled) == ({1}, set(), True)


def test_what_is_released_is_shown_at_once_where_it_was_answered_for() -> None:
    groups = owner()
    assert groups.follow({1}, assigned=(), at_once={1})
    assert (groups.state(1), groups.owned) == (S.RELEASED, set())
    groups = owner()
    assert not groups.follow({1}, assigned=(), at_once=())
    assert groups.state(1) is S.CATCHING_UP


def test_a_lost_grant_leaves_nothing_that_may_be_written() -> None:
    groups = owner()
    groups.lose_grant()
    assert (groups.owned, groups.state(1)) == (set(), S.ABSENT)


def test_what_falls_behind_before_it_was_shown_goes_on_catching_up() -> None:
    groups = KeyGroups()
    groups.follow({1}, assigned=(), at_once=())
    groups.fell_behind(1)
    assert groups.state(1) is S.CATCHING_UP
    groups.fell_behind(2)  # of which nothing is known any more
    assert groups.state(2) is S.ABSENT
    groups.reached_the_end(1)
    groups.fell_behind(1)
    assert (groups.state(1), groups.warm, groups.settled) == (S.STALE, set(), False)


def test_a_restore_that_gives_way_to_following_shows_what_was_shown() -> None:
    for shown, expected in ((False, S.CATCHING_UP), (True, S.STALE)):
        groups = KeyGroups()
        if shown:
            groups.follow({1}, assigned=(), at_once=())
            groups.reached_the_end(1)
            groups.follow((), assigned={1}, at_once=())
        groups.begin_restore([1])
        groups.follow({1}, assigned=(), at_once=())
        assert groups.state(1) is expected


@pytest.mark.parametrize(
    ("before", "after"),
    [pair for pair in itertools.product(S, S) if pair[0] is not pair[1] and pair[1] not in TRANSITIONS[pair[0]]],
    ids=lambda state: state.value,
)
def test_a_change_that_is_not_legal_is_refused(before: KeyGroupState, after: KeyGroupState) -> None:
    groups = KeyGroups()
    way = _way(before)
    for state in way:
        groups._become(1, state)
    with pytest.raises(AssertionError, match=f"can't go from {before.value} to {after.value}"):
        groups._become(1, after)
    assert groups.state(1) is before


def _way(to: KeyGroupState) -> list[KeyGroupState]:
    """The shortest way there from ABSENT."""
    ways: list[list[KeyGroupState]] = [[]]
    for way in ways:
        if (way or [S.ABSENT])[-1] is to:
            return way
        ways += [[*way, state] for state in sorted(TRANSITIONS[(way or [S.ABSENT])[-1]], key=lambda one: one.value)]
    raise AssertionError
