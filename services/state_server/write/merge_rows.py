"""The strategies by which one row per key, or per entry of a key, is written: it replaces, is ranked, or reduced."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.envelope import DELETED, UNORDERED_DELETION
from keyhole.encoding.reducers import Reduce, RowFields, mergings
from keyhole.encoding.row_codec import RowCodec, encode_row
from keyhole.encoding.value_types import optional, value_type
from keyhole.errors import StaleDescriptor, ValueMismatch
from keyhole.model.state import StateDescriptor
from services.state_server.write.merging import (
    CommitContext,
    EntryChange,
    RowMerge,
    Stored,
    StoredValue,
    StoredValues,
    check_both_delete,
)

Rank = Callable[[bytes], Any]
"""A row's rank under `order_by`: anything that compares."""


class Upsert(RowMerge):
    """Kinds VALUE, MAP and BROADCAST: an epoch has one row per entry, which replaces the stored one.

    Two rows of one entry in one epoch are refused, unless both delete it.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def staged(self, row: StoredValue, other: StoredValue) -> StoredValue:
        message = (
            f"state {self._name} got two rows of one key in one epoch, and nothing says which of them counts. Name a "
            "column with order_by=, or aggregate to one row per key first"
        )
        check_both_delete(row, other, message, self._name)
        return None

    def with_stored(self, rows: StoredValues, stored: Stored, context: CommitContext) -> list[EntryChange]:
        return sorted(rows.items())


class RankedMerge(RowMerge):
    """Kinds VALUE and BROADCAST with `order_by`: of the epoch's rows and the stored one, that of the highest rank
    stays.

    A deletion (envelope.deletion) has a rank too, and is remembered in the key's place. A row that is None deletes
    whatever the others rank, and is not remembered. Of equal rank the epoch's row wins over the stored one; within an
    epoch a deletion wins, then the highest bytes.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def staged(self, row: StoredValue, other: StoredValue) -> StoredValue:
        if row is None or other is None:
            return None
        # Rows of equal rank come in any order; the choice must not depend on it.
        return max(row, other, key=lambda row: (self.rank(row), row.startswith(DELETED), row))

    def with_stored(self, rows: StoredValues, stored: Stored, context: CommitContext) -> list[EntryChange]:
        rank, keys = self.rank, sorted(rows)
        return [
            (key, remembered(row))
            for key, before in zip(keys, stored.get_many(keys), strict=True)
            if (row := rows[key]) is None or before is None or rank(row) >= rank(before)
        ]

    def replacing(self, rows: StoredValues, context: CommitContext) -> StoredValues:
        return {key: changed for key, row in rows.items() if (changed := remembered(row)) is not None}


def remembered(row: StoredValue) -> StoredValue:
    """Returns what is stored of a row or deletion that counts; None: nothing, for a deletion whose order is null."""
    return None if row == UNORDERED_DELETION else row


class Reducing(RowMerge):
    """Kind REDUCING: rows are merged field by field, by the descriptor's reducers; the stored row is merged with too.

    An epoch's rows have no order, so a deletion among them takes the others of its key along.

    Merging the same row twice counts it twice. That an epoch is merged once is for the caller to see to: by the
    position of the key group, which moves in the same step as the rows.

    A stored row of an earlier schema is merged onto as what it is read as, and is of the newest schema from then on.
    """

    def __init__(self, name: str, descriptor: StateDescriptor) -> None:
        fields = descriptor.value.fields
        self._name = name
        self._version = descriptor.value.version
        self._rows = RowCodec(descriptor)
        types: list[Any] = [value_type(field.type).stored | None for field in fields]
        self._decode: Callable[[bytes], RowFields] = msgspec.msgpack.Decoder(
            tuple.__class_getitem__((int, *types))
        ).decode
        merged = mergings(fields, descriptor.reducers)
        self._staged = [merging.staged for merging in merged]
        self._onto = [merging.onto for merging in merged]

    def staged(self, row: StoredValue, other: StoredValue) -> StoredValue:
        return self._merged(row, other, self._staged)

    def with_stored(self, rows: StoredValues, stored: Stored, context: CommitContext) -> list[EntryChange]:
        keys = sorted(rows)
        return [
            (key, rows[key] if before is None else self._merged(before, rows[key], self._onto))
            for key, before in zip(keys, stored.get_many(keys), strict=True)
        ]

    def _merged(self, row: StoredValue, other: StoredValue, reduces: Sequence[Reduce]) -> StoredValue:
        if row is None or other is None:
            return None
        one, two = self._fields(row), self._fields(other)
        return encode_row(self._version, [reduce(one, two) for reduce in reduces])

    def _fields(self, row: bytes) -> RowFields:
        try:
            fields = self._decode(row)
        except msgspec.MsgspecError:
            fields = (None,)  # not as the cause: it may hold the value
        return fields if fields[0] == self._version else self._upgraded(row)

    def _upgraded(self, row: bytes) -> RowFields:
        try:
            return self._version, *self._rows.stored_fields(row)
        except (ValueMismatch, StaleDescriptor):
            raise ValueMismatch(
                f"a row of {len(row)} bytes is of no schema of state {self._name} up to version {self._version}",
                state=self._name,
                version=self._version,
            ) from None


def rank_by(name: str, codec: StateCodec) -> Rank:
    """Ranks by a field of the value, as Spark sorts: null below all, NaN above all. A deletion has only that field."""
    kind = value_type(next(field.type for field in codec.descriptor.value.fields if field.name == name))
    decode, convert = msgspec.msgpack.Decoder(kind.stored | None).decode, optional(kind.to_python)

    def order_of(deleted: bytes) -> Any:
        try:
            return convert(decode(deleted[len(DELETED) :]))
        except (msgspec.MsgspecError, ValueError, OverflowError, ArithmeticError):
            # Not as the cause: it may hold the value.
            raise ValueMismatch(
                f"a deletion of {len(deleted)} bytes has no {name} of state {codec.descriptor.state}",
                state=codec.descriptor.state,
            ) from None

    def rank(row: bytes) -> tuple[int, Any]:
        value = order_of(row) if row.startswith(DELETED) else codec.decode_row(row)[name]
        if value is None:
            return 0, 0
        if isinstance(value, float) and math.isnan(value):
            return 2, 0
        return 1, value

    return rank
