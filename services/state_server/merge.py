"""How an epoch's rows change what is stored. Pure, but for reading the snapshot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from keyhole.codec import StateCodec
from keyhole.stores.base import Snapshot
from keyhole.types import StateDescriptor
from services.state_server.staged import OrderOf

Change = tuple[bytes, bytes | None]
"""A storage key and its new row; None deletes it."""


def changes(
    rows: Mapping[bytes, bytes | None], snapshot: Snapshot, key_group: int, *, order_of: OrderOf | None, replace: bool
) -> list[Change]:
    """What must be written to one key group, ascending by key; empty: nothing.

    Running it again after it was applied gives nothing more to write, or the same rows: that makes a replay harmless.

    Args:
        rows: The epoch's rows of the key group; None deletes.
        snapshot: The state before the epoch.
        order_of: A row is written only where it does not rank below the stored one.
        replace: `rows` is all that the key group holds from now on (complete mode).
    """
    if replace:
        return _replacing(rows, dict(snapshot.items(key_group)))
    if order_of is not None:
        return _ordered(rows, snapshot, order_of)
    return sorted(rows.items())


def _replacing(rows: Mapping[bytes, bytes | None], stored: Mapping[bytes, bytes]) -> list[Change]:
    # Complete mode repeats the whole result every epoch; only what differs is worth a changelog record.
    changed: list[Change] = [(key, row) for key, row in rows.items() if stored.get(key) != row]
    changed.extend((key, None) for key in stored if key not in rows)
    return sorted(changed)


def _ordered(rows: Mapping[bytes, bytes | None], snapshot: Snapshot, order_of: OrderOf) -> list[Change]:
    keys = sorted(rows)
    return [
        (key, row)
        for key, stored in zip(keys, snapshot.get_many(keys), strict=True)
        if (row := rows[key]) is None or stored is None or order_of(row) >= order_of(stored)
    ]


def order_of(descriptor: StateDescriptor, codec: StateCodec) -> OrderOf | None:
    """Ranks rows by the descriptor's `order_by`, as Spark sorts: null below all, NaN above all."""
    if not descriptor.order_by:
        return None
    name = descriptor.order_by

    def rank(row: bytes) -> tuple[int, Any]:
        value = codec.decode_row(row)[name]
        if value is None:
            return 0, 0
        if isinstance(value, float) and math.isnan(value):
            return 2, 0
        return 1, value

    return rank
