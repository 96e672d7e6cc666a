"""Who answers for each key group of a state, and who is about to. Made of the routes and of what servers say. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

import msgspec

from keyhole.protocol.routing import RouteTable
from keyhole.v1 import query_pb2 as pb
from services.client_proxy.console.group_lag import CopiesLag, lag_of


class GroupStatus(enum.StrEnum):
    """Who answers for a key group now, from best to worst.

    OWNED: its owner. UNCONFIRMED: its owner, which has not heard of its coordinator for the lease time. RESTORING: its
    owner reads the changelog, and another copy answers. FOLLOWED: it has no owner that can be reached, and another copy
    answers. WAITING: its owner reads the changelog, and nobody answers. NOBODY: nobody has it.
    """

    OWNED = "owned"
    UNCONFIRMED = "unconfirmed"
    RESTORING = "restoring"
    FOLLOWED = "followed"
    WAITING = "waiting"
    NOBODY = "nobody"


class GroupRun(msgspec.Struct, frozen=True):
    """Key groups in a row that stand alike.

    Attributes:
        first, last: Both are of it.
        lag: How far its copies are behind, the owner's included.
        owner: The server's name; empty: none that can be reached.
        copies: The other servers that have it and answer for it.
        catching_up: Those that are to follow it and don't answer for it yet.
    """

    first: int
    last: int
    status: GroupStatus
    lag: CopiesLag
    owner: str
    copies: tuple[str, ...]
    catching_up: tuple[str, ...]


class Awaited(NamedTuple):
    """Key groups of a state that a server was given, to own or to follow, and does not answer for yet."""

    server: str
    owner: bool
    key_groups: frozenset[int]


def runs_of(
    table: RouteTable,
    owners: Iterable[pb.StateHolding],
    others: Iterable[pb.StateHolding],
    awaited: Iterable[Awaited],
    names: Mapping[str, str],
) -> Iterator[GroupRun]:
    """All key groups, in their order.

    Args:
        owners, others: What servers answer for as owners, and otherwise.
        names: The servers', by address.
    """
    count = table.descriptor.key_groups
    copies: list[list[str]] = [[] for _ in range(count)]
    catching_up: list[list[str]] = [[] for _ in range(count)]
    restoring: list[list[str]] = [[] for _ in range(count)]
    owned: list[dict[str, pb.StateHolding]] = [{} for _ in range(count)]
    followed = {holding.server: holding for holding in others}
    for holding in followed.values():
        for group in holding.key_groups:
            if group < count:
                copies[group].append(holding.server)
    for holding in owners:
        for group in holding.key_groups:
            if group < count:
                owned[group][holding.server] = holding
    for of in awaited:
        for group in of.key_groups:
            if group < count:
                (restoring if of.owner else catching_up)[group].append(of.server)

    def looked_at(group: int) -> tuple[GroupStatus, CopiesLag, str, tuple[str, ...], tuple[str, ...]]:
        address = table.owners.addresses[group]
        owner = names.get(address, address)
        mine = owned[group].get(owner)
        if mine is None and restoring[group]:
            owner = min(restoring[group])
        beside, behind = tuple(sorted(copies[group])), tuple(sorted(catching_up[group]))
        answering = [*([mine] if mine else []), *(followed[server] for server in beside)]
        lag = lag_of(answering, restoring=bool(behind or restoring[group]))
        return _status(mine, bool(restoring[group]), bool(beside)), lag, owner, beside, behind

    for stands, found in groupby(range(count), looked_at):
        groups = list(found)
        yield GroupRun(groups[0], groups[-1], *stands)


def _status(owner: pb.StateHolding | None, restoring: bool, followed: bool) -> GroupStatus:
    if owner is not None:
        return GroupStatus.UNCONFIRMED if owner.source.unconfirmed else GroupStatus.OWNED
    if restoring:
        return GroupStatus.RESTORING if followed else GroupStatus.WAITING
    return GroupStatus.FOLLOWED if followed else GroupStatus.NOBODY
