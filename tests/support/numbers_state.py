"""A state of numbers, each of which tells the epoch that wrote it."""

from __future__ import annotations

import pyarrow as pa

from keyhole.encoding.columnar import encode
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema

STATE, KEY_GROUPS = "numbers", 12


def numbers_of(application: str, query: str) -> StateDescriptor:
    """The state, whose rows are `number`s."""
    return StateDescriptor(
        application=application,
        state=STATE,
        query=query,
        kind=StateKind.VALUE,
        key_groups=KEY_GROUPS,
        key=(KeyColumn("k", KeyType.BIGINT),),
        value=ValueSchema(1, (ValueField("n", "bigint"),)),
    )


def number(key: int, epoch: int) -> int:
    """What a key below 10,000 holds as of an epoch."""
    return epoch * 10_000 + key


def number_rows(of: StateDescriptor, keys: range, epoch: int) -> list[pa.RecordBatch]:
    """All keys, as an epoch writes them."""
    numbers = pa.array([number(key, epoch) for key in keys], pa.int64())
    return [encode(pa.RecordBatch.from_pydict({"k": pa.array(keys, pa.int64()), "n": numbers}), of)]
