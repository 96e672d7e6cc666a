"""Which server answers for which key group, computed from what the servers say of themselves. Pure.

Every server tells the whole of what it holds whenever that changes. A reader keeps the last word of each server (View),
and derives all routes anew from all views: the result depends on the last words alone, never on their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from keyhole.types import Role, StateDescriptor

StateName: TypeAlias = tuple[str, str]
"""Application and state."""


class Holding(msgspec.Struct, frozen=True):
    """What one server says of one state.

    Attributes:
        key_groups: Those that it answers for, or will once it is ready.
    """

    descriptor: StateDescriptor
    key_groups: frozenset[int]
    role: Role
    generation: int
    assignment_version: int
    ready: bool


class View(msgspec.Struct, frozen=True):
    """The last word of one server.

    Attributes:
        address: Where it is reached; the views of one address replace each other.
        lost: Empty: the connection stands. Otherwise why it doesn't; the holdings are those from before.
        max_key_bytes: The longest storage key that it takes; 0: unknown.
    """

    address: str
    server: str = ""
    draining: bool = False
    lost: str = ""
    max_key_bytes: int = 0
    holdings: tuple[Holding, ...] = ()


class RouteTable(msgspec.Struct, frozen=True):
    """The routes of one state, as of one moment.

    Attributes:
        routes: The address that answers for each key group; empty where none does.
        sole: The address that answers for all key groups, empty if there is no such one: whole frames go there unread.
        missing: Why key groups have no route, one sentence per server that had or may have them.
        max_key_bytes: The smallest of the servers' limits; 0: unknown.
    """

    descriptor: StateDescriptor
    routes: tuple[str, ...]
    sole: str
    missing: str
    max_key_bytes: int

    def split(self, storage_keys: Sequence[bytes]) -> dict[str, list[int]]:
        """The indexes of the keys by address (empty: no route). Their key groups must be within the state's."""
        routes = self.routes
        by_address: dict[str, list[int]] = {}
        for index, key in enumerate(storage_keys):
            by_address.setdefault(routes[key[0] << 8 | key[1]], []).append(index)
        return by_address


class Change(NamedTuple):
    """What became different between two sets of tables."""

    added: frozenset[StateName]
    removed: frozenset[StateName]
    moved: Mapping[StateName, int]
    """How many key groups have another route, or another descriptor, by state; those with none are missing."""


class _Claim(NamedTuple):
    """Ordered: the highest is believed.

    A newer generation or assignment comes before readiness: the older server's answers would be those of an owner that
    was replaced. Where all is equal, any fixed order will do, so that all readers choose the same.
    """

    owner: bool
    generation: int
    assignment_version: int
    ready: bool
    staying: bool
    address: str


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
            name = (holding.descriptor.application, holding.descriptor.state)
            by_state.setdefault(name, []).append((view, holding))
    away = {name: _away(descriptor) for name, descriptor in (remembered or {}).items() if name not in by_state}
    return away | {name: _table(claims) for name, claims in by_state.items()}


def diff(before: Mapping[StateName, RouteTable], after: Mapping[StateName, RouteTable]) -> Change:
    """What a swap from `before` to `after` changes."""
    moved = {name: _moved(before[name], after[name]) for name in before.keys() & after.keys()}
    return Change(
        added=frozenset(after.keys() - before.keys()),
        removed=frozenset(before.keys() - after.keys()),
        moved={name: count for name, count in moved.items() if count},
    )


def _table(claims: list[tuple[View, Holding]]) -> RouteTable:
    descriptor = max(claims, key=lambda claim: (_claim(*claim)[:3], claim[0].lost == "", claim[0].address))[
        1
    ].descriptor
    # A server that still holds an earlier state of the same name can't answer for this one.
    claims = [claim for claim in claims if claim[1].descriptor.topic_id == descriptor.topic_id]
    best: dict[int, _Claim] = {}
    for view, holding in claims:
        if view.lost:
            continue
        claim = _claim(view, holding)
        for group in holding.key_groups:
            if group < descriptor.key_groups and (group not in best or best[group] < claim):
                best[group] = claim
    routes = tuple(best[group].address if group in best else "" for group in range(descriptor.key_groups))
    limits = [view.max_key_bytes for view, _ in claims if view.max_key_bytes]
    return RouteTable(
        descriptor=descriptor,
        routes=routes,
        sole=routes[0] if len(set(routes)) == 1 else "",
        missing="" if all(routes) else _missing(claims),
        max_key_bytes=min(limits, default=0),
    )


def _away(descriptor: StateDescriptor) -> RouteTable:
    return RouteTable(
        descriptor=descriptor,
        routes=("",) * descriptor.key_groups,
        sole="",
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
    )


def _missing(claims: list[tuple[View, Holding]]) -> str:
    reasons = []
    for view, holding in sorted(claims, key=lambda claim: claim[0].address):
        who = f"server {view.server or view.address}"
        if view.lost:
            reasons.append(f"{who} was lost: {view.lost}")
        elif not holding.ready:
            reasons.append(f"{who} is restoring")
        else:
            reasons.append(f"{who} holds {len(holding.key_groups)} of {holding.descriptor.key_groups} key groups")
    return "; ".join(reasons)


def _moved(before: RouteTable, after: RouteTable) -> int:
    if before.descriptor != after.descriptor:
        return len(after.routes)
    return sum(old != new for old, new in zip(before.routes, after.routes, strict=True))
