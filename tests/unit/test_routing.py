"""Routes from what servers say of themselves."""

from __future__ import annotations

import msgspec

from keyhole.model.read import Role
from keyhole.model.state import ValueSchema
from keyhole.protocol.routing import build, diff
from keyhole.protocol.server_view import Holding, ServerView, let_go
from tests.support.readings import APPLICATION, KEY_GROUPS, STATE, descriptor

NAME = (APPLICATION, STATE)
ALL = frozenset(range(KEY_GROUPS))
LOW, HIGH = frozenset(range(8)), frozenset(range(8, KEY_GROUPS))


def _holding(groups: frozenset[int] = ALL, *, generation: int = 1, version: int = 1, **others: object) -> Holding:
    return msgspec.structs.replace(Holding(descriptor(), groups, Role.OWNER, generation, version, ready=True), **others)


def _view(address: str, *holdings: Holding, **others: object) -> ServerView:
    return msgspec.structs.replace(ServerView(address, server=f"server-{address}", holdings=holdings), **others)


def test_one_server_with_all_key_groups_is_the_sole_route() -> None:
    table = build([_view("a", _holding())])[NAME]
    assert table.first.sole == "a"
    assert set(table.first.addresses) == {"a"}
    assert table.missing == ""


def test_key_groups_go_to_their_owners_and_keys_are_split_by_them() -> None:
    table = build([_view("a", _holding(LOW)), _view("b", _holding(HIGH))])[NAME]
    assert table.first.sole == ""
    keys = [group.to_bytes(2, "big") + b"key" for group in (0, 15, 7, 8)]
    assert table.first.split(keys) == {"a": [0, 2], "b": [1, 3]}


def test_the_newest_assignment_is_the_owners_and_the_old_one_answers_until_the_new_one_is_ready() -> None:
    old, new = _view("a", _holding(version=1)), _view("b", _holding(version=2, ready=False))
    table = build([old, new])[NAME]
    assert (table.owners.sole, table.copies[0]) == ("b", ("a", "b"))
    assert build([old, _view("b", _holding(version=2))])[NAME].copies[0] == ("b", "a")


def test_a_newer_generation_wins_over_a_higher_assignment_version() -> None:
    views = [_view("a", _holding(generation=1, version=9)), _view("b", _holding(generation=2, version=1))]
    assert build(views)[NAME].first.sole == "b"


def test_standbys_come_after_their_owner_and_before_it_while_it_restores_is_silent_or_lost() -> None:
    standby, owner = _view("a", _holding(role=Role.STANDBY)), _view("b", _holding())
    assert build([standby, owner])[NAME].copies[0] == ("b", "a")
    for away in (_view("b", _holding(ready=False)), _view("b", _holding(), suspect=True)):
        table = build([standby, away])[NAME]
        assert (table.copies[0], table.owners.sole) == (("a", "b"), "b")
    table = build([standby, _view("b", _holding(), lost="gone")])[NAME]
    assert (table.copies[0], table.owners.sole) == (("a",), "")
    assert table.missing == "server server-a holds 16 of 16 key groups as a standby; server server-b was lost: gone"


def test_one_server_may_own_some_key_groups_and_follow_others() -> None:
    a = _view("a", _holding(LOW), _holding(HIGH, role=Role.STANDBY))
    b = _view("b", _holding(HIGH), _holding(LOW, role=Role.STANDBY))
    table = build([a, b])[NAME]
    assert table.owners.addresses == ("a",) * 8 + ("b",) * 8
    assert table.copies == (("a", "b"),) * 8 + (("b", "a"),) * 8
    assert build([a, msgspec.structs.replace(b, lost="gone")])[NAME].first.sole == "a"


def test_copies_that_are_not_ready_are_asked_last_and_readers_of_any_copy_are_not_sent_there() -> None:
    views = [
        _view("a", _holding()),
        _view("b", _holding(role=Role.STANDBY, ready=False)),
        _view("c", _holding(role=Role.STANDBY)),
        _view("d", _holding(role=Role.STANDBY), draining=True),
    ]
    table = build(views)[NAME]
    assert table.copies[0] == ("a", "c", "d", "b")
    assert {routes.addresses[0] for routes in table.spread} == {"a", "c", "d"}


def test_standbys_share_the_key_groups_of_a_lost_owner() -> None:
    standbys = [_view(address, _holding(role=Role.STANDBY)) for address in "bcd"]
    routes = build([_view("a", _holding(), lost="gone"), *standbys])[NAME].first.addresses
    assert sorted(routes.count(address) for address in "bcd") == [5, 5, 6]


def test_readers_of_any_copy_are_spread_over_all_of_them() -> None:
    views = [_view("a", _holding()), *(_view(address, _holding(role=Role.STANDBY)) for address in "bc")]
    table = build(views)[NAME]
    assert len(table.spread) == 3
    for group in range(KEY_GROUPS):
        assert sorted(routes.addresses[group] for routes in table.spread) == ["a", "b", "c"]


def test_among_equals_the_ready_one_wins_and_a_draining_one_loses() -> None:
    for loses, wins in ("a", "b"), ("b", "a"):  # whichever of them comes first by its address
        assert build([_view(loses, _holding(ready=False)), _view(wins, _holding())])[NAME].first.sole == wins
        assert build([_view(loses, _holding(), draining=True), _view(wins, _holding())])[NAME].first.sole == wins


def test_an_owner_wins_over_a_newer_standby() -> None:
    assert build([_view("a", _holding()), _view("b", _holding(version=2, role=Role.STANDBY))])[NAME].first.sole == "a"


def test_a_lost_server_has_no_routes_but_its_reason_is_remembered() -> None:
    table = build([_view("a", _holding(), lost="connection refused")])[NAME]
    assert set(table.first.addresses) == {""}
    assert table.missing == "server server-a was lost: connection refused"
    assert table.descriptor == descriptor()


def test_the_rest_of_a_lost_servers_neighbours_goes_on() -> None:
    table = build([_view("a", _holding(LOW)), _view("b", _holding(HIGH), lost="gone")])[NAME]
    assert table.first.addresses == ("a",) * 8 + ("",) * 8


def test_a_server_that_still_holds_the_state_from_before_it_was_made_anew_gets_no_route() -> None:
    old = _holding(descriptor=descriptor(topic_id="old"))
    table = build([_view("a", old), _view("b", _holding(generation=2))])[NAME]
    assert (table.first.sole, table.descriptor.topic_id) == ("b", "topic-1")


def test_the_newest_schema_that_any_server_tells_counts_whoever_owns_the_key_groups() -> None:
    newer = msgspec.structs.replace(descriptor(), value=ValueSchema(2, ()), earlier=(descriptor().value,))
    views = [_view("a", _holding(ALL)), _view("b", _holding(ALL, descriptor=newer, role=Role.STANDBY))]
    table = build(views)[NAME]
    assert table.descriptor == newer
    assert table.owners.sole == "a"
    assert build(views[:1])[NAME].descriptor == descriptor()


def test_a_state_that_nobody_holds_any_more_is_away_but_not_unknown() -> None:
    table = build([_view("a")], {NAME: descriptor()})[NAME]
    assert set(table.first.addresses) == {""}
    assert "no server holds it now" in table.missing


def test_a_server_that_lives_on_lets_go_of_what_it_does_not_tell_any_more() -> None:
    before = _view("a", _holding(LOW), incarnation="1")
    assert let_go(before, _view("a", incarnation="1")) == {NAME}
    assert let_go(msgspec.structs.replace(before, lost="gone"), _view("a", incarnation="1")) == {NAME}
    kept = [
        _view("a", _holding(frozenset()), incarnation="1"),  # they have moved
        _view("a", incarnation="2"),  # it was restarted
        _view("a", incarnation="1", lost="gone"),
    ]
    assert all(let_go(before, after) == frozenset() for after in kept)
    assert let_go(None, before) == let_go(kept[0], _view("a", incarnation="1")) == frozenset()
    assert let_go(_view("a", _holding()), _view("a")) == frozenset(), "of unknown incarnations nothing can be told"


def test_a_key_group_beyond_the_states_is_ignored() -> None:
    assert build([_view("a", _holding(ALL | {999}))])[NAME].first.sole == "a"


def test_the_smallest_key_limit_counts() -> None:
    views = [_view("a", _holding(LOW), max_key_bytes=511), _view("b", _holding(HIGH), max_key_bytes=4096)]
    assert build(views)[NAME].max_key_bytes == 511


def test_diff_names_what_came_went_and_moved() -> None:
    before = build([_view("a", _holding())])
    other = _holding(LOW, descriptor=descriptor("alarms"))
    after = build([_view("a", _holding(LOW), other), _view("b", _holding(HIGH))])
    assert diff(before, after) == (frozenset({(APPLICATION, "alarms")}), frozenset(), {NAME: 8})
    assert diff(after, before).removed == {(APPLICATION, "alarms")}
    assert diff(after, after) == (frozenset(), frozenset(), {})
