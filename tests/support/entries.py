"""A small map state for tests of scans, its entries, and tables that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from keyhole.model.epoch import START, EpochStamp, Position
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.stores.base import Advance, Batch
from keyhole.v1 import query_pb2 as pb
from services.state_server.read.standing import Standing
from services.state_server.read.table import Table

APPLICATION, STATE = "weather", "hourly"
KEY_GROUPS = 16


def hourly(*map_key: KeyType, kind: StateKind = StateKind.MAP, **changes: Any) -> StateDescriptor:
    """sensor (string) -> by map key (m0, m1, ...; default: one int) -> celsius, count."""
    types = map_key or ((KeyType.INT,) if kind is StateKind.MAP else ())
    described = StateDescriptor(
        application=APPLICATION,
        state=STATE,
        query="main",
        kind=kind,
        key_groups=KEY_GROUPS,
        key=(KeyColumn("sensor", KeyType.STRING),),
        value=ValueSchema(1, (ValueField("celsius", "double"), ValueField("count", "bigint"))),
        topic_id="topic-1",
        map_key=tuple(KeyColumn(f"m{number}", of) for number, of in enumerate(types)),
    )
    return msgspec.structs.replace(described, **changes)


def row(celsius: float, count: int = 1) -> bytes:
    """As stored: schema version, then the fields."""
    return msgspec.msgpack.encode([1, celsius, count])


def hours(sensor: str, numbers: Iterable[int], count: int = 1) -> dict[Any, bytes]:
    """Entries by key and map key; the map key is their celsius, too."""
    return {(sensor, number): row(float(number), count) for number in numbers}


class Epochs:
    """Applies epochs to a table's store, and publishes them as their owner."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._positions: dict[int, Position] = {}
        self.epoch = 0

    def apply(self, entries: Mapping[Any, bytes | None] | Mapping[Any, bytes]) -> None:
        """One epoch of rows by key and map key, as stored; None deletes. Readers don't see it yet."""
        self.epoch += 1
        rows = {self._table.codec.storage_key(key): stored for key, stored in entries.items()}
        after = {
            int.from_bytes(key[:2], "big"): Position(10 * self.epoch, self.epoch, 1, 0, 1000 * self.epoch)
            for key in rows
        }
        advances = {group: Advance(self._positions.get(group, START), to) for group, to in after.items()}
        puts = sorted((key, stored) for key, stored in rows.items() if stored is not None)
        self._table.store.apply(Batch(puts, sorted(rows.keys() - dict(puts).keys()), advances))
        self._positions |= after

    def publish(self) -> None:
        """All that was applied."""
        self._table.given.taken_over()
        standing = Standing(EpochStamp(self.epoch, 1, 1000 * self.epoch, 0), assignment_version=1)
        self._table.publish(self._table.store.snapshot(), frozenset(range(KEY_GROUPS)), standing, {}, self.epoch)

    def commit(self, entries: Mapping[Any, bytes | None] | Mapping[Any, bytes]) -> None:
        """`apply` and `publish`."""
        self.apply(entries)
        self.publish()


def scan_request(key: Any = "sensor-7", start: Any = None, stop: Any = None, **fields: Any) -> pb.ScanRequest:
    """Of the state above; key and bounds as the client takes them, of the columns that fit their values."""
    request = pb.ScanRequest(state=pb.StateRef(application=APPLICATION, state=STATE), **fields)
    for part, given in (("key", key), ("from", start), ("to", stop)):
        if given is not None:
            getattr(request, part).CopyFrom(key_of(*given) if isinstance(given, tuple) else key_of(given))
    return request


def key_of(*values: str | int | None) -> pb.Key:
    """On the wire; None: a part without a value."""
    return pb.Key(
        parts=[
            pb.KeyPart() if value is None else pb.KeyPart(**{"string" if isinstance(value, str) else "integer": value})
            for value in values
        ]
    )
