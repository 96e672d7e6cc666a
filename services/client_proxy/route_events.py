"""What became different between two looks at the servers, kept for a person to see."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from operator import attrgetter
from typing import NamedTuple

import msgspec

from keyhole.model.read import Role
from keyhole.protocol.routing import RouteChange, RouteTable
from keyhole.protocol.server_view import ServerView, StateName

_MOST_EVENTS = 200
_MOST_RESTORES = 200
_MOST_MOVES = 8


class Move(msgspec.Struct, frozen=True):
    """So many key groups went from one server to another; an empty name: from nobody, or to nobody."""

    key_groups: int
    origin: str
    target: str


class RouteEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened, as the proxy has noticed it.

    Attributes:
        number: Grows by one with each event of this proxy.
        at_ms: Milliseconds since 1970, by the proxy's clock.
        kind: server_found, server_lost, server_silent, server_heard, server_draining, server_gone; state_added,
            state_removed, key_groups_moved; restore_began, restore_ended.
        server: Whose event it is, or who restores, or its address where its name is not known; else empty.
        reason: Why a server was lost.
        application, state: Of a state's event.
        moves: The largest ones first; those beyond eight are left out.
        role: Of the copy that is restored: "owner", or "standby", which catches up.
        key_groups: How many the restored copy answers for.
        took_ms: From its beginning to its end, as the proxy has seen them.
    """

    number: int
    at_ms: int
    kind: str
    server: str = ""
    reason: str = ""
    application: str = ""
    state: str = ""
    moves: tuple[Move, ...] = ()
    role: str = ""
    key_groups: int = 0
    took_ms: int = 0


class _CopyPlace(NamedTuple):
    """Of a state, on the server at an address."""

    address: str
    application: str
    state: str
    role: Role


class RouteEvents:
    """The last events of one proxy. Event loop's thread only."""

    def __init__(self) -> None:
        self._events: deque[RouteEvent] = deque(maxlen=_MOST_EVENTS)
        # Apart: a server with many states that comes back must not push out why it had gone.
        self._restores: deque[RouteEvent] = deque(maxlen=_MOST_RESTORES)
        # Copies that are being restored, and since when.
        self._restoring: dict[_CopyPlace, int] = {}
        self._next = 1

    def __iter__(self) -> Iterator[RouteEvent]:
        """From the oldest to the newest."""
        return merge(self._events, self._restores, key=attrgetter("number"))

    def note_servers(self, now_ms: int, before: Mapping[str, ServerView], after: Mapping[str, ServerView]) -> None:
        """What changed about the servers themselves; by address."""
        for address in sorted(before.keys() - after.keys()):
            self._add(now_ms, "server_gone", server=before[address].server or address)
        for address, view in sorted(after.items()):
            for kind in _changes(before.get(address), view):
                self._add(
                    now_ms, kind, server=view.server or address, reason=view.lost if kind == "server_lost" else ""
                )

    def note_routes(
        self,
        now_ms: int,
        change: RouteChange,
        before: Mapping[StateName, RouteTable],
        after: Mapping[StateName, RouteTable],
        names: Mapping[str, str],
        *,
        moves: bool = True,
    ) -> None:
        """What changed about the states.

        Args:
            names: The servers', by address.
            moves: Also which key groups moved: not as servers are heard one after the other for the first time.
        """
        for application, state in sorted(change.added):
            self._add(now_ms, "state_added", application=application, state=state)
        for application, state in sorted(change.removed):
            self._add(now_ms, "state_removed", application=application, state=state)
        for name in sorted(change.moved) if moves else ():
            found = _moves(before[name].owners.addresses, after[name].owners.addresses, names)
            if found:  # else only other copies changed
                self._add(now_ms, "key_groups_moved", application=name[0], state=name[1], moves=found)

    def note_restores(self, now_ms: int, before: Mapping[str, ServerView], after: Mapping[str, ServerView]) -> None:
        """Which copies have begun to read their changelog, or ended; by address. Of a server that is lost meanwhile no
        end is told.
        """
        for address in before.keys() | after.keys():
            view = after.get(address)
            if view is before.get(address):
                continue
            held = view.holdings if view is not None and not view.lost else ()
            copies = {_CopyPlace(address, *of.name, of.role): of for of in held}
            for copy in sorted(self._restoring.keys() - copies.keys()):
                if copy.address == address:
                    del self._restoring[copy]
            for copy, of in sorted(copies.items(), key=lambda pair: pair[0]):
                began_ms = self._restoring.get(copy)
                if of.ready == (began_ms is None):
                    continue
                if began_ms is None:
                    self._restoring[copy] = now_ms
                else:
                    del self._restoring[copy]
                self._restores.append(
                    RouteEvent(
                        self._number(),
                        now_ms,
                        "restore_began" if began_ms is None else "restore_ended",
                        (view.server if view is not None else "") or address,
                        application=copy.application,
                        state=copy.state,
                        role=str(copy.role),
                        key_groups=0 if began_ms is None else len(of.key_groups),
                        took_ms=0 if began_ms is None else now_ms - began_ms,
                    )
                )

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    def _add(
        self,
        now_ms: int,
        kind: str,
        *,
        server: str = "",
        reason: str = "",
        application: str = "",
        state: str = "",
        moves: tuple[Move, ...] = (),
    ) -> None:
        self._events.append(RouteEvent(self._number(), now_ms, kind, server, reason, application, state, moves))


def _changes(before: ServerView | None, after: ServerView) -> Iterator[str]:
    was_there = before is not None and not before.lost
    if after.lost:
        # A server that was never there, and still isn't, is news once.
        if before is None or was_there:
            yield "server_lost"
        return
    if not was_there:
        yield "server_found"
    was_suspect, was_draining = was_there and before.suspect, was_there and before.draining  # type: ignore[union-attr]
    if after.suspect != was_suspect:
        yield "server_silent" if after.suspect else "server_heard"
    if after.draining and not was_draining:
        yield "server_draining"


def _moves(before: Iterable[str], after: Iterable[str], names: Mapping[str, str]) -> tuple[Move, ...]:
    counted = Counter((old, new) for old, new in zip(before, after, strict=False) if old != new)
    return tuple(
        Move(count, names.get(origin, origin), names.get(target, target))
        for (origin, target), count in counted.most_common(_MOST_MOVES)
    )
