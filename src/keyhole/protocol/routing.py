"""Which server answers for which key group, computed from what the servers say of themselves. Pure.

Every server sends the whole of what it holds whenever that changes. A reader keeps the last word of each server
(ServerView), and derives all routes anew from all views: the result depends on the last words alone, never on their
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from keyhole.encoding.storage_key import group_of
from keyhole.model.read import Role
from keyhole.model.state import StateDescriptor
from keyhole.protocol.ranking import claim_of, rankings
from keyhole.protocol.server_view import Holding, ServerView, StateName


class Routes(msgspec.Struct, frozen=True):
    """One address per key group.

    Attributes:
        addresses: By key group; empty where nobody is to be asked.
        sole: The address of all key groups, empty if they have several: whole frames go there unread.
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
        copies: By key group, all servers that hold a copy, in the order in which they are to be asked. First the owner,
            then ready standbys, owners that were replaced, copies that are not ready, at last servers that keep silent.
        first: The first of these: the owner where it answers.
        spread: Each copy that can answer has its turn in one of these, for readers that take any.
        missing: Why key groups have no owner, one sentence per server that had or may have them.
        max_key_bytes: The smallest of the servers' limits; 0: unknown.
    """

    descriptor: StateDescriptor
    owners: Routes
    copies: tuple[tuple[str, ...], ...]
    first: Routes
    spread: tuple[Routes, ...]
    missing: str
    max_key_bytes: int

    def too_long(self, storage_keys: Sequence[bytes]) -> Sequence[int]:
        """The indexes of keys that are longer than the servers take: others of a frame must not fail with them."""
        most = self.max_key_bytes
        if not most or max(map(len, storage_keys)) <= most:
            return ()
        return [index for index, key in enumerate(storage_keys) if len(key) > most]


class RouteChange(NamedTuple):
    """What became different between two sets of tables."""

    added: frozenset[StateName]
    removed: frozenset[StateName]
    moved: Mapping[StateName, int]
    """How many key groups have other copies, or another descriptor, by state; those with none are missing."""


def build(
    views: Iterable[ServerView], remembered: Mapping[StateName, StateDescriptor] | None = None
) -> dict[StateName, RouteTable]:
    """The route tables of all states that any server, lost ones included, was last heard to hold.

    Args:
        remembered: States that were held before. Those that nobody holds now get a table without routes: between the
            restart of a server and its next assignment a state is away, but not unknown.
    """
    by_state: dict[StateName, list[tuple[ServerView, Holding]]] = {}
    for view in views:
        for holding in view.holdings:
            by_state.setdefault(holding.name, []).append((view, holding))
    away = {name: _away(descriptor) for name, descriptor in (remembered or {}).items() if name not in by_state}
    return away | {name: _table(holdings) for name, holdings in by_state.items()}


def diff(before: Mapping[StateName, RouteTable], after: Mapping[StateName, RouteTable]) -> RouteChange:
    """What a swap from `before` to `after` changes."""
    moved = {name: _moved(before[name], after[name]) for name in before.keys() & after.keys()}
    return RouteChange(
        added=frozenset(after.keys() - before.keys()),
        removed=frozenset(before.keys() - after.keys()),
        moved={name: count for name, count in moved.items() if count},
    )


def _table(holdings: list[tuple[ServerView, Holding]]) -> RouteTable:
    newest = max(holdings, key=lambda one: (claim_of(*one)[:3], one[0].lost == "", one[0].address))
    topic_id = newest[1].descriptor.topic_id
    # A server that still holds an earlier state of the same name can't answer for this one.
    holdings = [one for one in holdings if one[1].descriptor.topic_id == topic_id]
    # One that has not heard of the newest schema yet can: by that one, its rows can be read too.
    descriptor = max((newest[1], *(of for _, of in holdings)), key=lambda of: of.descriptor.value.version).descriptor
    limits = [view.max_key_bytes for view, _ in holdings if view.max_key_bytes]
    ranked = rankings(descriptor.key_groups, holdings)
    owners = Routes.of(ranking.owner for ranking in ranked)
    copies = tuple(ranking.copies for ranking in ranked)
    turns = max(len(ranking.able) for ranking in ranked)
    return RouteTable(
        descriptor=descriptor,
        owners=owners,
        copies=copies,
        first=Routes.of(of[0] if of else "" for of in copies),
        spread=tuple(
            Routes.of(ranking.able[turn % len(ranking.able)] if ranking.able else "" for ranking in ranked)
            for turn in range(max(1, turns))
        ),
        missing="" if all(owners.addresses) else _missing(holdings),
        max_key_bytes=min(limits, default=0),
    )


def _away(descriptor: StateDescriptor) -> RouteTable:
    nobody = Routes.of([""] * descriptor.key_groups)
    return RouteTable(
        descriptor=descriptor,
        owners=nobody,
        copies=((),) * descriptor.key_groups,
        first=nobody,
        spread=(nobody,),
        missing="no server holds it now, though one did; its job may be starting again, or was removed",
        max_key_bytes=0,
    )


def _missing(holdings: list[tuple[ServerView, Holding]]) -> str:
    reasons = []
    for view, holding in sorted(holdings, key=lambda one: (one[0].address, one[1].role)):
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
