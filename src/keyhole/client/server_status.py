"""What `status` answers, as values: what each server holds and how far it is."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from keyhole.model.read import Source
from keyhole.model.state import StateDescriptor
from keyhole.rpc import convert
from keyhole.v1 import query_pb2


class StateHolding(msgspec.Struct, frozen=True):
    """What one server holds of one state in one role (`source.role`).

    Attributes:
        key_groups: Which ones, ascending.
        entries: How many; where they are many, an estimate of its store's.
        bytes: As taken by its store, on disk or in memory.
        ready: False while it restores: `restored_records` of `records_to_restore` are done.
        lag_updates: Of an owner of a state that is fed by updates: how many its logs had, when it looked last,
            that are not applied; else 0.
        updates_lag: How long ago one of its key groups had all of them, at most: a second or less where all are
            applied.
    """

    descriptor: StateDescriptor
    server: str
    key_groups: tuple[int, ...]
    source: Source
    entries: int
    bytes: int
    ready: bool
    restored_records: int
    records_to_restore: int
    lag_updates: int = 0
    updates_lag: timedelta = timedelta(0)


class PlacedKeyGroups(msgspec.Struct, frozen=True):
    """Key groups of a state that were moved to a server (`keyhole move`), whoever owns them now.

    Attributes:
        key_groups: Which ones, ascending.
    """

    application: str
    state: str
    key_groups: tuple[int, ...]


class ServerStatus(msgspec.Struct, frozen=True):
    """One state server.

    Attributes:
        started: UTC; None where it is not reachable.
        unreachable: Empty: it answers. Otherwise why it does not.
        max_key_bytes: The longest encoded key that its stores take.
        replica: It holds standby copies only.
        version: Of its Keyhole; empty: it does not say.
        protocol_version: What it speaks to proxies and coordinators; 0: it does not say.
        now: Its clock as it answered, UTC; None: it does not say.
        placements: What was moved there, as long as its process lives.
    """

    server: str
    address: str
    incarnation: str
    started: datetime | None
    draining: bool
    unreachable: str
    holdings: tuple[StateHolding, ...]
    max_key_bytes: int
    replica: bool = False
    version: str = ""
    protocol_version: int = 0
    now: datetime | None = None
    placements: tuple[PlacedKeyGroups, ...] = ()


def holding_from_proto(message: query_pb2.StateHolding) -> StateHolding:
    """Field by field; times as datetimes."""
    return StateHolding(
        descriptor=convert.descriptor_from_proto(message.descriptor),
        server=message.server,
        key_groups=tuple(message.key_groups),
        source=convert.source_from_proto(message.source),
        entries=message.entries,
        bytes=message.bytes,
        ready=message.ready,
        restored_records=message.restored_records,
        records_to_restore=message.records_to_restore,
        lag_updates=message.lag_updates,
        updates_lag=timedelta(milliseconds=message.updates_lag_ms),
    )


def status_from_proto(message: query_pb2.ServerStatus) -> ServerStatus:
    """Field by field; times as datetimes."""
    return ServerStatus(
        server=message.server,
        address=message.address,
        incarnation=message.incarnation,
        started=convert.time_from_ms(message.started_ms),
        draining=message.draining,
        unreachable=message.unreachable,
        holdings=tuple(holding_from_proto(holding) for holding in message.holdings),
        max_key_bytes=message.max_key_bytes,
        replica=message.replica,
        version=message.version,
        protocol_version=message.protocol_version,
        now=convert.time_from_ms(message.now_ms),
        placements=tuple(PlacedKeyGroups(of.application, of.state, tuple(of.key_groups)) for of in message.placements),
    )
