"""How a state stands: key group by key group, and in all. Made of what servers say, and of the routes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from keyhole.model.state import StateDescriptor
from keyhole.protocol.routing import RouteTable
from keyhole.protocol.server_view import StateName
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import state_pb2
from services.client_proxy.console.group_runs import Awaited, GroupRun, GroupStatus, runs_of


class HeldCopy(msgspec.Struct, frozen=True):
    """What one server answers for of a state in one role, as `StateHolding` of the protos. Times are milliseconds since
    1970.

    Attributes:
        ready: It answers for all that it was given in this role.
        key_groups: First and last of each row of those that it answers for.
        entries, bytes: Of the server's whole store, that of its other role included.
    """

    server: str
    role: str
    ready: bool
    unconfirmed: bool
    key_groups: tuple[tuple[int, int], ...]
    epoch: int
    generation: int
    commit_time_ms: int
    watermark_ms: int
    as_of_ms: int
    lag_epochs: int
    entries: int
    bytes: int
    restored_records: int
    records_to_restore: int
    lag_updates: int
    updates_lag_ms: int


class StateStanding(msgspec.Struct, frozen=True):
    """One state in all.

    Attributes:
        fed_by: "epochs" or "updates".
        groups: How many key groups are of each status; those that none is of are left out.
        servers: Those that hold any of it.
        standbys: The fewest other copies that answer for a key group.
        entries, bytes: Of the owners' key groups.
        estimated: They are in proportion to key groups, as servers also follow others: a server knows the size of its
            whole store, which also has what it followed before.
        epoch: The highest that readers see; of a state fed by updates it says nothing.
        commit_time_ms: Of the newest epoch that readers see; 0: none.
        as_of_ms: Readers see all that was complete then, of each key group that anybody answers for; 0: not known.
        lag_epochs: The most that a copy beside an owner lacks.
        restored_records, records_to_restore: Of the owners that restore.
        lag_updates, updates_lag_ms: Updates that are not applied, and for how long the oldest has not been.
    """

    application: str
    state: str
    kind: str
    query: str
    fed_by: str
    key_groups: int
    groups: dict[str, int]
    servers: tuple[str, ...]
    standbys: int
    entries: int
    bytes: int
    estimated: bool
    epoch: int
    commit_time_ms: int
    as_of_ms: int
    lag_epochs: int
    restored_records: int
    records_to_restore: int
    lag_updates: int
    updates_lag_ms: int

    def count(self, *statuses: GroupStatus) -> int:
        """How many key groups are of one of these."""
        return sum(self.groups.get(status, 0) for status in statuses)


class Described(NamedTuple):
    """A state in all its parts."""

    descriptor: StateDescriptor
    standing: StateStanding
    runs: tuple[GroupRun, ...]
    copies: tuple[HeldCopy, ...]
    missing: str
    """Why key groups have no owner, as the routes say; with addresses of servers."""


def describe_all(
    tables: Mapping[StateName, RouteTable],
    servers: Mapping[str, pb.ServerStatus],
    awaited: Mapping[StateName, Sequence[Awaited]] = MappingProxyType({}),
) -> dict[StateName, Described]:
    """All states that there are, in their order.

    Args:
        servers: By address, as the routes name them.
        awaited: What they are restoring.
    """
    held: dict[StateName, list[pb.StateHolding]] = {}
    for server in servers.values():
        for holding in server.holdings:
            held.setdefault((holding.descriptor.application, holding.descriptor.state), []).append(holding)
    names = {address: server.server or address for address, server in servers.items()}
    return {
        name: _describe(table, held.get(name, ()), awaited.get(name, ()), names)
        for name, table in sorted(tables.items())
    }


def _describe(
    table: RouteTable, holdings: Sequence[pb.StateHolding], awaited: Sequence[Awaited], names: Mapping[str, str]
) -> Described:
    descriptor = table.descriptor
    # A server that still holds an earlier state of the same name says nothing of this one.
    ours = [of for of in holdings if of.descriptor.topic_id == descriptor.topic_id]
    owners = [of for of in ours if of.source.role == state_pb2.ROLE_OWNER]
    others = [of for of in ours if of.source.role != state_pb2.ROLE_OWNER]
    runs = tuple(runs_of(table, owners, others, awaited, names))
    copies = tuple(_copy(of) for of in sorted(ours, key=lambda of: (of.source.role, of.server)))
    return Described(descriptor, _standing(descriptor, runs, owners, others), runs, copies, table.missing)


def _standing(
    descriptor: StateDescriptor,
    runs: Sequence[GroupRun],
    owners: Sequence[pb.StateHolding],
    others: Sequence[pb.StateHolding],
) -> StateStanding:
    groups: dict[str, int] = {}
    for run in runs:
        groups[run.status] = groups.get(run.status, 0) + run.last - run.first + 1
    by_owner, by_other = {of.server: of for of in owners}, {of.server: of for of in others}
    # Of each key group the copy that readers are given: its owner, where that answers.
    given: dict[tuple[str, str], pb.StateHolding] = {}
    for run in runs:
        if run.status in (GroupStatus.OWNED, GroupStatus.UNCONFIRMED):
            given["owner", run.owner] = by_owner[run.owner]
        elif run.copies:
            freshest = max((by_other[server] for server in run.copies), key=lambda of: of.source.as_of_ms)
            given["other", freshest.server] = freshest
    sources = [of.source for of in given.values()]
    sizes = [_share(of, by_other.get(of.server)) for of in owners] if owners else [_share(of, None) for of in others]
    restoring = [of for of in owners if not of.ready]
    return StateStanding(
        application=descriptor.application,
        state=descriptor.state,
        kind=str(descriptor.kind),
        query=descriptor.query,
        fed_by="updates" if descriptor.updates_topic_id else "epochs",
        key_groups=descriptor.key_groups,
        groups=groups,
        servers=tuple(sorted({*by_owner, *by_other})),
        standbys=min((len(run.copies) for run in runs), default=0),
        entries=round(sum(entries for entries, _ in sizes)),
        bytes=round(sum(size for _, size in sizes)),
        estimated=bool(by_owner.keys() & by_other.keys()),
        epoch=max((of.epoch for of in sources), default=0),
        commit_time_ms=max((of.commit_time_ms for of in sources), default=0),
        # A copy that does not know since when it has all is as old as can be.
        as_of_ms=min((of.as_of_ms for of in sources), default=0),
        lag_epochs=max((of.source.lag_epochs for of in others), default=0),
        restored_records=sum(of.restored_records for of in restoring),
        records_to_restore=sum(of.records_to_restore for of in restoring),
        lag_updates=sum(of.lag_updates for of in owners),
        updates_lag_ms=max((of.updates_lag_ms for of in owners), default=0),
    )


def _share(owned: pb.StateHolding, followed: pb.StateHolding | None) -> tuple[float, float]:
    """Entries and bytes of what is owned: a server's two roles share one store, whose size is all that it knows."""
    mine, both = len(owned.key_groups), len(owned.key_groups) + (len(followed.key_groups) if followed else 0)
    if mine == both:
        return owned.entries, owned.bytes
    return owned.entries * mine / both, owned.bytes * mine / both


def _copy(holding: pb.StateHolding) -> HeldCopy:
    source = holding.source
    return HeldCopy(
        server=holding.server,
        role="owner" if source.role == state_pb2.ROLE_OWNER else "standby",
        ready=holding.ready,
        unconfirmed=source.unconfirmed,
        key_groups=tuple(_rows(holding.key_groups)),
        epoch=source.epoch,
        generation=source.generation,
        commit_time_ms=source.commit_time_ms,
        watermark_ms=source.watermark_ms,
        as_of_ms=source.as_of_ms,
        lag_epochs=source.lag_epochs,
        entries=holding.entries,
        bytes=holding.bytes,
        restored_records=holding.restored_records,
        records_to_restore=holding.records_to_restore,
        lag_updates=holding.lag_updates,
        updates_lag_ms=holding.updates_lag_ms,
    )


def _rows(groups: Iterable[int]) -> Iterable[tuple[int, int]]:
    for _, found in groupby(enumerate(sorted(groups)), lambda pair: pair[1] - pair[0]):
        row = [group for _, group in found]
        yield row[0], row[-1]
