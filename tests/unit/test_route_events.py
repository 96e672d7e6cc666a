"""What a proxy remembers of servers and routes, for the console."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from keyhole.errors import NoServer, UnknownApplication, UnknownState
from keyhole.model.read import Role
from keyhole.protocol.routing import build, diff
from keyhole.protocol.server_view import Holding, ServerView
from keyhole.testing.clock import ManualClock
from services.client_proxy.directory import Directory
from services.client_proxy.route_events import Move, RouteEvents
from tests.support.readings import APPLICATION, STATE, descriptor

STATED = msgspec.structs.replace(descriptor(), key_groups=8)


def held(groups: range, role: Role = Role.OWNER, *, ready: bool = True) -> Holding:
    return Holding(STATED, frozenset(groups), role, 1, 1, ready)


def view(address: str, groups: range = range(0), **more: Any) -> ServerView:
    holdings = more.pop("holdings", (held(groups),) if groups else ())
    return ServerView(address, f"server-{address}", holdings=holdings, **more)


class Followed:
    """A directory's calls, one look after the other."""

    def __init__(self) -> None:
        self.events = RouteEvents()
        self.views: dict[str, ServerView] = {}
        self.last = 0

    def see(self, *views: ServerView) -> list[tuple[Any, ...]]:
        """What is new then."""
        before, self.views = self.views, {of.address: of for of in views}
        old, new = build(before.values()), build(views)
        self.events.note_servers(1_000, before, self.views)
        names = {of.address: of.server for of in views}
        self.events.note_routes(1_000, diff(old, new), old, new, names)
        found = [event for event in self.events if event.number > self.last]
        self.last = max((event.number for event in found), default=self.last)
        return [
            (event.kind, event.server or f"{event.application}/{event.state}", *([event.moves] if event.moves else []))
            for event in found
        ]


def test_servers_and_key_groups_that_come_move_and_go_are_remembered() -> None:
    followed, state = Followed(), f"{APPLICATION}/{STATE}"
    assert followed.see(view("a"), view("b")) == [("server_found", "server-a"), ("server_found", "server-b")]
    assert followed.see(view("a", range(8)), view("b")) == [("state_added", state)]
    assert followed.see(view("a", range(4)), view("b", range(4, 8))) == [
        ("key_groups_moved", state, (Move(4, "server-a", "server-b"),))
    ]
    assert followed.see(view("a", range(4)), view("b", range(4, 8), suspect=True)) == [("server_silent", "server-b")]
    assert followed.see(view("a", range(4)), view("b", range(4, 8))) == [("server_heard", "server-b")]
    lost = view("b", range(4, 8), lost="connection refused")
    assert followed.see(view("a", range(4)), lost) == [
        ("server_lost", "server-b"),
        ("key_groups_moved", state, (Move(4, "server-b", ""),)),
    ]
    assert [event.reason for event in followed.events][-2] == "connection refused"
    assert followed.see(view("a", range(4)), lost) == []
    assert followed.see(view("a", range(8)), lost) == [("key_groups_moved", state, (Move(4, "", "server-a"),))]
    assert followed.see(view("a", range(8)), view("b")) == [("server_found", "server-b")]
    assert followed.see(view("a", range(8), draining=True), view("b"))[0] == ("server_draining", "server-a")
    assert followed.see(view("b")) == [("server_gone", "server-a"), ("state_removed", state)]


def test_key_groups_are_not_said_to_move_while_servers_are_heard_for_the_first_time() -> None:
    events = RouteEvents()
    old, new = build([view("a", range(4))]), build([view("a", range(4)), view("b", range(4, 8))])
    change = diff(old, new)
    assert change.moved
    events.note_routes(1, change, old, new, {}, moves=False)
    assert list(events) == []


def test_a_server_that_was_never_there_is_told_of_once() -> None:
    followed = Followed()
    away = ServerView("a:1", lost="connection refused")
    assert followed.see(away) == [("server_lost", "a:1")]
    assert followed.see(away) == []


def test_restores_are_told_as_they_begin_and_end() -> None:
    events, seen = RouteEvents(), dict[str, ServerView]()

    def see(now_ms: int, *views: ServerView) -> list[tuple[Any, ...]]:
        before, last = dict(seen), max((event.number for event in events), default=0)
        seen.clear()
        seen.update({of.address: of for of in views})
        events.note_restores(now_ms, before, seen)
        return [
            (of.kind, of.server, of.application, of.state, of.role, of.key_groups, of.took_ms)
            for of in events
            if of.number > last
        ]

    def event(kind: str, role: str, key_groups: int = 0, took_ms: int = 0, server: str = "a") -> tuple[Any, ...]:
        return (kind, f"server-{server}", APPLICATION, STATE, role, key_groups, took_ms)

    begun = held(range(0), ready=False)
    whole = view("a", range(4))
    assert see(1_000, whole) == []  # it has all that it was given
    follows = (held(range(4)), held(range(0), Role.STANDBY, ready=False))
    assert see(2_000, view("a", holdings=follows)) == [event("restore_began", "standby")]
    assert see(2_500, view("a", holdings=(follows[0], held(range(4, 6), Role.STANDBY, ready=False)))) == []
    caught_up = view("a", holdings=(follows[0], held(range(4, 8), Role.STANDBY)))
    assert see(5_000, caught_up) == [event("restore_ended", "standby", 4, 3_000)]
    assert see(6_000, caught_up, view("b", holdings=(begun,))) == [event("restore_began", "owner", server="b")]
    # Of one that is lost meanwhile, or gives it up, no end is told: it begins again.
    assert see(7_000, caught_up, view("b", holdings=(begun,), lost="gone")) == []
    assert see(8_000, caught_up, view("b", holdings=(begun,))) == [event("restore_began", "owner", server="b")]
    assert see(9_000, caught_up, view("b")) == []
    assert see(9_500, caught_up, view("b", range(2))) == []
    assert see(9_600, caught_up, view("b", holdings=(begun,))) == [event("restore_began", "owner", server="b")]
    assert see(9_700, caught_up) == []
    assert see(9_900, caught_up, view("b", range(2))) == []


def test_many_restores_push_out_no_other_events() -> None:
    followed = Followed()
    followed.see(view("a"))
    restoring, whole = view("b", holdings=(held(range(0), ready=False),)), view("b", range(8))
    for _ in range(300):
        followed.events.note_restores(1, {"b": whole}, {"b": restoring})
        followed.events.note_restores(2, {"b": restoring}, {"b": whole})
    numbers = [event.number for event in followed.events]
    assert len(numbers) == 201
    assert numbers == sorted(numbers)
    assert next(iter(followed.events)).kind == "server_found"


def test_only_the_last_events_are_kept() -> None:
    followed = Followed()
    for _ in range(150):
        followed.see(view("a"))
        followed.see()
    kept = list(followed.events)
    assert len(kept) == 200
    assert [event.number for event in kept] == list(range(101, 301))


class _Nowhere:
    """A discovery that is not asked."""

    def addresses(self) -> Any:
        raise NotImplementedError


def _directory(*expected: str) -> tuple[Directory, Any]:
    """A directory whose links are what the second one is given: views."""
    directory = Directory(_Nowhere(), 1.0, ManualClock(), expected=frozenset(expected))  # type: ignore[arg-type]

    def see(*views: ServerView) -> None:
        directory._links = {of.address: SimpleNamespace(address=of.address, view=of, reached=True) for of in views}  # type: ignore[misc]
        directory._look()

    return directory, see


def test_an_application_that_was_retired_is_unknown_though_it_is_to_be_there_until_it_comes_again() -> None:
    directory, see = _directory(APPLICATION)
    see(view("a", incarnation="1"))
    with pytest.raises(NoServer, match="heard of application"):
        directory.table((APPLICATION, STATE))
    see(view("a", range(8), incarnation="1"))
    assert directory.table((APPLICATION, STATE))
    for _ in range(2):  # and stays so
        see(view("a", incarnation="1"))
        with pytest.raises(UnknownApplication):
            directory.table((APPLICATION, STATE))
    see(view("a", range(8), incarnation="1"))
    assert directory.table((APPLICATION, STATE))
    # One that was restarted has retired nothing.
    see(view("a", incarnation="2"))
    assert directory.table((APPLICATION, STATE))


def test_a_state_may_be_late_for_a_minute_after_its_application_has_begun_and_then_there_is_none() -> None:
    directory, see = _directory(APPLICATION)
    clock = directory.clock
    assert isinstance(clock, ManualClock)
    see(view("a", incarnation="1"))
    directory.settled.set()
    see(view("a", range(8), incarnation="1"))
    for seconds in (0, 59):
        clock.advance(seconds)
        with pytest.raises(NoServer, match=f"no state 'late' so far.* it has: {STATE}"):
            directory.table((APPLICATION, "late"))
    clock.advance(1)
    with pytest.raises(UnknownState):
        directory.table((APPLICATION, "late"))


def test_no_state_is_late_of_an_application_that_a_proxy_finds_as_it_begins() -> None:
    directory, see = _directory(APPLICATION)
    see(view("a", range(8), incarnation="1"))
    directory.settled.set()
    with pytest.raises(UnknownState):
        directory.table((APPLICATION, "late"))


def test_a_state_that_was_retired_is_not_late_though_its_application_has_only_begun() -> None:
    directory, see = _directory(APPLICATION)
    see(view("a", incarnation="1"))
    directory.settled.set()
    other = msgspec.structs.replace(held(range(8)), descriptor=msgspec.structs.replace(STATED, state="other"))
    see(view("a", holdings=(held(range(8)), other), incarnation="1"))
    see(view("a", holdings=(other,), incarnation="1"))
    with pytest.raises(UnknownState):
        directory.table((APPLICATION, STATE))
    with pytest.raises(NoServer):
        directory.table((APPLICATION, "late"))


def test_a_directory_tells_of_the_restores_of_its_servers() -> None:
    directory, see = _directory()
    see(view("a", holdings=(held(range(0), ready=False),)))
    see(view("a", range(8)))
    assert [event.kind for event in directory.events] == [
        "server_found",
        "state_added",
        "restore_began",
        "restore_ended",
    ]


def test_key_groups_of_a_server_that_is_gone_went_from_its_name() -> None:
    directory, see = _directory()
    see(view("a"), view("b", range(8)))
    directory.settled.set()
    see(view("a"))
    by_kind = {event.kind: event for event in directory.events}
    assert by_kind["server_gone"].server == "server-b"
    assert by_kind["key_groups_moved"].moves == (Move(8, "server-b", ""),)
