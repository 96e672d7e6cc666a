"""Which server answers for which key group, computed from what the servers say of themselves. Pure.

Every server tells the whole of what it holds whenever that changes. A reader keeps the last word of each server (View),
and derives all routes anew from all views: the result depends on the last words alone, never on their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from keyhole.encoding.storage_key import group_of
from keyhole.model.read import Role
from keyhole.model.state import StateDescriptor

StateName: TypeAlias = tuple[str, str]
"""Application and state."""


class Holding(msgspec.Struct, frozen=True):
    """What one server says of one state in one role: a server that owns some key groups and follows others tells two.

    Attributes:
        key_groups: Those that it answers for, or will once it is ready.
    """

    descriptor: StateDescriptor
    key_groups: frozenset[int]
    role: Role
    generation: int
    assignment_version: int
    ready: bool

    @property
    def name(self) -> StateName:
        """Whose key groups they are."""
        return self.descriptor.application, self.descriptor.state


class View(msgspec.Struct, frozen=True):
    """The last word of one server, and what the reader knows of their connection.

    Attributes:
        address: Where it is reached; the views of one address replace each other.
        lost: Empty: the connection stands. Otherwise why it doesn't; the holdings are those from before.
        suspect: The connection stands, but the server has not answered for a while: others are asked before it.
        max_key_bytes: The longest storage key that it takes; 0: unknown.
        incarnation: Of its process; empty: unknown.
    """

    address: str
    server: str = ""
    draining: bool = False
    lost: str = ""
    suspect: bool = False
    max_key_bytes: int = 0
    holdings: tuple[Holding, ...] = ()
    incarnation: str = ""

    @property
    def held(self) -> frozenset[StateName]:
        """The states of which it holds key groups."""
        return frozenset(holding.name for holding in self.holdings if holding.key_groups)


class Routes(msgspec.Struct, frozen=True):
    """One address per key group.

    Attributes:
        addresses: By key group; empty where nobody is to be asked.
        sole: The address of all key groups, empty if there is no such one: whole frames go there unread.
    """

    addresses: tuple[str, ...]
    sole: str

    @classmethod
    def of(cls, addresses: Iterable[str]) -> Routes:
        """One per key group, at least one."""
        routes = tuple(addresses)
        return cls(routes, routes[0] if len(set(routes)) == 1 else "")

    def split(self, storage_keys: Sequence[bytes]) -> dict[str, list[int]]:
        """The indexes of the keys by address (empty: no route). Their key groups must be within the state's."""
        routes = self.addresses
        by_address: dict[str, list[int]] = {}
        for index, key in enumerate(storage_keys):
            by_address.setdefault(routes[group_of(key)], []).append(index)
        return by_address


class RouteTable(msgspec.Struct, frozen=True):
    """The routes of one state, as of one moment.

    Attributes:
        owners: For readers that want nothing stale: each key group's owner, whether or not it is ready or answers.
        copies: By key group, all servers that hold a copy, in the order in which they are to be asked: the owner, ready
            standbys, owners that were replaced, copies that are not ready, and at last servers that keep silent.
        nearest: The first of these: the owner where it answers.
        spread: Each copy that can answer has its turn in one of these, for readers that take any.
        missing: Why key groups have no owner, one sentence per server that had or may have them.
        max_key_bytes: The smallest of the servers' limits; 0: unknown.
    """

    descriptor: StateDescriptor
    owners: Routes
    copies: tuple[tuple[str, ...], ...]
    nearest: Routes
    spread: tuple[Routes, ...]
    missing: str
    max_key_bytes: int


class Change(NamedTuple):
    """What became different between two sets of tables."""

    added: frozenset[StateName]
    removed: frozenset[StateName]
    moved: Mapping[StateName, int]
    """How many key groups have other copies, or another descriptor, by state; those with none are missing."""


class _Claim(NamedTuple):
    """Ordered: of two that say they own a key group, the higher is believed.

    A newer generation or assignment comes before readiness: the older server's answers would be those of an owner that
    was replaced. Where all is equal, any fixed order will do, so that all readers choose the same.
    """

    owner: bool
    generation: int
    assignment_version: int
    ready: bool
    staying: bool
    address: str
    answering: bool


def build(
    views: Iterable[View], remembered: Mapping[StateName, StateDescriptor] | None = None
) -> dict[StateName, RouteTable]:
    """The route tables of all states that any server, lost ones included, was last heard to hold.

    Args:
        remembered: States that were held before. Those that nobody holds now get a table without routes: between the
            restart of a server and its next assignment a state is away, but not unknown.
    """
    by_state: dict[StateName, list[tuple[View, Holding]]] = {}
    for view in views:
        for holding in view.holdings:
            by_state.setdefault(holding.name, []).append((view, holding))
    away = {name: _away(descriptor) for name, descriptor in (remembered or {}).items() if name not in by_state}
    return away | {name: _table(told) for name, told in by_state.items()}


def let_go(before: View | None, after: View) -> frozenset[StateName]:
    """The states of which a server held key groups, and holds nothing now though it lives on: it has forgotten them.

    One that was restarted has forgotten nothing: it waits to be given what it held.
    """
    if before is None or after.lost or not after.incarnation or after.incarnation != before.incarnation:
        return frozenset()
    return before.held - {holding.name for holding in after.holdings}


def diff(before: Mapping[StateName, RouteTable], after: Mapping[StateName, RouteTable]) -> Change:
    """What a swap from `before` to `after` changes."""
    moved = {name: _moved(before[name], after[name]) for name in before.keys() & after.keys()}
    return Change(
        added=frozenset(after.keys() - before.keys()),
        removed=frozenset(before.keys() - after.keys()),
        moved={name: count for name, count in moved.items() if count},
    )


def _table(told: list[tuple[View, Holding]]) -> RouteTable:
    newest = max(told, key=lambda one: (_claim(*one)[:3], one[0].lost == "", one[0].address))
    topic_id = newest[1].descriptor.topic_id
    # A server that still holds an earlier state of the same name can't answer for this one.
    told = [one for one in told if one[1].descriptor.topic_id == topic_id]
    # One that has not heard of the newest schema yet can: by that one, its rows can be read too.
    descriptor = max((newest[1], *(of for _, of in told)), key=lambda of: of.descriptor.value.version).descriptor
    limits = [view.max_key_bytes for view, _ in told if view.max_key_bytes]
    rankings = _rankings(descriptor.key_groups, told)
    owners = Routes.of(ranking.owner for ranking in rankings)
    copies = tuple(ranking.copies for ranking in rankings)
    turns = max(len(ranking.able) for ranking in rankings)
    return RouteTable(
        descriptor=descriptor,
        owners=owners,
        copies=copies,
        nearest=Routes.of(of[0] if of else "" for of in copies),
        spread=tuple(
            Routes.of(ranking.able[turn % len(ranking.able)] if ranking.able else "" for ranking in rankings)
            for turn in range(max(1, turns))
        ),
        missing="" if all(owners.addresses) else _missing(told),
        max_key_bytes=min(limits, default=0),
    )


class _Ranking(NamedTuple):
    """Who is to be asked for one key group. `able`: those copies that should be able to answer; none: all of them."""

    owner: str
    copies: tuple[str, ...]
    able: tuple[str, ...]


def _rankings(key_groups: int, told: list[tuple[View, Holding]]) -> list[_Ranking]:
    claims: list[list[_Claim]] = [[] for _ in range(key_groups)]
    for view, holding in told:
        if view.lost:
            continue
        claim = _claim(view, holding)
        for group in holding.key_groups:
            if group < key_groups:
                claims[group].append(claim)
    # Most key groups have the same claims as others: as many rankings as there are different ones, and turns.
    known: dict[tuple[int, frozenset[_Claim]], _Ranking] = {}
    found = []
    for group, of in enumerate(claims):
        ranked = (group % _TURNS, frozenset(of))
        if ranked not in known:
            known[ranked] = _rank(of, group % _TURNS)
        found.append(known[ranked])
    return found


# Divisible by all numbers of standbys that are likely, so that these share the key groups evenly.
_TURNS = 60
_UNREADY = 3


def _rank(claims: list[_Claim], turn: int) -> _Ranking:
    owner = max((claim for claim in claims if claim.owner), default=None)
    # Ready standbys share the key groups of a lost owner: each begins with another one.
    others = sorted((claim for claim in claims if claim != owner), key=lambda claim: claim.address)
    others = others[turn % len(others) :] + others[: turn % len(others)] if others else []
    others.sort(key=lambda claim: (_tier(claim, owner), not claim.staying))
    ranked = sorted([*([owner] if owner else []), *others], key=lambda claim: _tier(claim, owner))
    able = [claim for claim in ranked if _tier(claim, owner) < _UNREADY] or ranked
    return _Ranking(owner.address if owner else "", _addresses(ranked), _addresses(able))


def _tier(claim: _Claim, owner: _Claim | None) -> int:
    if not claim.answering:
        return _UNREADY + 1
    if not claim.ready:
        return _UNREADY
    return 0 if claim == owner else 2 if claim.owner else 1


def _addresses(claims: list[_Claim]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(claim.address for claim in claims))


def _away(descriptor: StateDescriptor) -> RouteTable:
    nobody = Routes.of([""] * descriptor.key_groups)
    return RouteTable(
        descriptor=descriptor,
        owners=nobody,
        copies=((),) * descriptor.key_groups,
        nearest=nobody,
        spread=(nobody,),
        missing="no server holds it now, though one did; its job may be starting again, or was removed",
        max_key_bytes=0,
    )


def _claim(view: View, holding: Holding) -> _Claim:
    return _Claim(
        owner=holding.role is Role.OWNER,
        generation=holding.generation,
        assignment_version=holding.assignment_version,
        ready=holding.ready,
        staying=not view.draining,
        address=view.address,
        answering=not view.suspect,
    )


def _missing(told: list[tuple[View, Holding]]) -> str:
    reasons = []
    for view, holding in sorted(told, key=lambda one: (one[0].address, one[1].role)):
        who = f"server {view.server or view.address}"
        if view.lost:
            reasons.append(f"{who} was lost: {view.lost}")
        elif not holding.ready:
            reasons.append(f"{who} is restoring")
        else:
            role = "" if holding.role is Role.OWNER else " as a standby"
            reasons.append(f"{who} holds {len(holding.key_groups)} of {holding.descriptor.key_groups} key groups{role}")
    return "; ".join(dict.fromkeys(reasons))


def _moved(before: RouteTable, after: RouteTable) -> int:
    if before.descriptor != after.descriptor:
        return len(after.copies)
    return sum(
        old != new
        for old, new in zip(
            zip(before.owners.addresses, before.copies, strict=True),
            zip(after.owners.addresses, after.copies, strict=True),
            strict=True,
        )
    )
