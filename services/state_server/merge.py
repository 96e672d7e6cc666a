"""How rows come together: two that are staged of one key, and those of an epoch with what is stored.

One strategy per kind of state. All of them give the same whatever the order of an epoch's rows, or a batch that is run
again would differ. Pure, but for reading the snapshot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from keyhole.codec import StateCodec, encode_row
from keyhole.errors import DuplicateKey, ValueMismatch
from keyhole.reducers import Fields, Reduce, mergings
from keyhole.stores.base import Snapshot
from keyhole.types import StateDescriptor, StateKind
from keyhole.value_types import value_type

Row = bytes | None
"""A row, or None, which deletes the key."""

Rows = Mapping[bytes, Row]
"""An epoch's rows of one key group, by storage key."""

Change = tuple[bytes, Row]
"""A storage key and its new row."""

Rank = Callable[[bytes], Any]
"""A row's rank under `order_by`: anything that compares."""


class Merge(Protocol):
    """What a kind of state makes of several rows of one key."""

    def staged(self, row: Row, other: Row) -> Row:
        """What two staged rows of one key amount to, in whichever order they came.

        Raises:
            DuplicateKey: The state takes one row per key and epoch.
            ValueMismatch: They can't be merged.
        """

    def with_stored(self, rows: Rows, snapshot: Snapshot) -> list[Change]:
        """What must be written, ascending by key, where the snapshot is the state before the epoch.

        Raises:
            ValueMismatch: A row and the stored one can't be merged.
        """


class Upsert:
    """Kind VALUE: an epoch has one row per key, which replaces the stored one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def staged(self, row: Row, other: Row) -> Row:
        raise DuplicateKey(
            f"state {self._name} got two rows of one key in one epoch, and nothing says which of them counts. Name a "
            "column with order_by=, or aggregate to one row per key first",
            state=self._name,
        )

    def with_stored(self, rows: Rows, snapshot: Snapshot) -> list[Change]:
        return sorted(rows.items())


class Ranked:
    """Kind VALUE with `order_by`: the row that ranks highest stays; a deletion counts whatever the others rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    def staged(self, row: Row, other: Row) -> Row:
        if row is None or other is None:
            return None
        # Rows of equal rank come in any order; the choice must not depend on it.
        return max(row, other, key=lambda row: (self._rank(row), row))

    def with_stored(self, rows: Rows, snapshot: Snapshot) -> list[Change]:
        rank, keys = self._rank, sorted(rows)
        return [
            (key, row)
            for key, stored in zip(keys, snapshot.get_many(keys), strict=True)
            if (row := rows[key]) is None or stored is None or rank(row) >= rank(stored)
        ]


class Reducing:
    """Kind REDUCING: rows are merged field by field, by the descriptor's reducers; the stored row is merged with too.

    An epoch's rows have no order, so a deletion among them takes the others of its key along.

    Merging the same row twice counts it twice. That an epoch is merged once is for the caller to see to: by the
    position of the key group, which moves in the same step as the rows.
    """

    def __init__(self, name: str, descriptor: StateDescriptor) -> None:
        fields = descriptor.value.fields
        self._name = name
        self._version = descriptor.value.version
        types: list[Any] = [value_type(field.type).stored | None for field in fields]
        self._decode: Callable[[bytes], Fields] = msgspec.msgpack.Decoder(tuple.__class_getitem__((int, *types))).decode
        merged = mergings(fields, descriptor.reducers)
        self._staged = [merging.staged for merging in merged]
        self._onto = [merging.onto for merging in merged]

    def staged(self, row: Row, other: Row) -> Row:
        return self._merged(row, other, self._staged)

    def with_stored(self, rows: Rows, snapshot: Snapshot) -> list[Change]:
        keys = sorted(rows)
        return [
            (key, rows[key] if stored is None else self._merged(stored, rows[key], self._onto))
            for key, stored in zip(keys, snapshot.get_many(keys), strict=True)
        ]

    def _merged(self, row: Row, other: Row, reduces: Sequence[Reduce]) -> Row:
        if row is None or other is None:
            return None
        one, two = self._fields(row), self._fields(other)
        return encode_row(self._version, [reduce(one, two) for reduce in reduces])

    def _fields(self, row: bytes) -> Fields:
        try:
            fields = self._decode(row)
        except msgspec.MsgspecError:
            fields = (None,)  # not as the cause: it may hold the value
        if fields[0] != self._version:
            raise ValueMismatch(
                f"a row of {len(row)} bytes is not of schema version {self._version} of state {self._name}",
                state=self._name,
                version=self._version,
            )
        return fields


def merge_of(descriptor: StateDescriptor) -> Merge:
    """The strategy of a state."""
    name = f"{descriptor.application}/{descriptor.state}"
    if descriptor.kind is StateKind.REDUCING:
        return Reducing(name, descriptor)
    if descriptor.order_by:
        return Ranked(rank_by(descriptor.order_by, StateCodec(descriptor)))
    return Upsert(name)


def rank_by(name: str, codec: StateCodec) -> Rank:
    """By a field of the value, as Spark sorts: null below all, NaN above all."""

    def rank(row: bytes) -> tuple[int, Any]:
        value = codec.decode_row(row)[name]
        if value is None:
            return 0, 0
        if isinstance(value, float) and math.isnan(value):
            return 2, 0
        return 1, value

    return rank


def changes(rows: Rows, snapshot: Snapshot, key_group: int, merge: Merge, *, replace: bool) -> list[Change]:
    """What must be written to one key group, ascending by key; empty: nothing.

    Args:
        snapshot: The state before the epoch.
        replace: `rows` is all that the key group holds from now on (complete mode, or a reset).
    """
    if replace:
        return _replacing(rows, dict(snapshot.items(key_group)))
    return merge.with_stored(rows, snapshot)


def _replacing(rows: Rows, stored: Mapping[bytes, bytes]) -> list[Change]:
    # Complete mode repeats the whole result every epoch; only what differs is worth a changelog record.
    changed: list[Change] = [(key, row) for key, row in rows.items() if stored.get(key) != row]
    changed.extend((key, None) for key in stored if key not in rows)
    return sorted(changed)
