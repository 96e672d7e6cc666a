"""Aggregating states: a user's aggregation runs in Spark's tasks, on what the key's owner held before the epoch."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from zlib import crc32

import msgspec
import pyarrow as pa

from keyhole.coordinator.task_stream import Connect
from keyhole.encoding.columnar import STORAGE_KEY, VALUE, Op, key_names, row_ops
from keyhole.encoding.envelope import DIGEST_BYTES, Aggregate, Base
from keyhole.encoding.row_codec import encode_row
from keyhole.encoding.value_types import optional, value_type
from keyhole.errors import ValueMismatch
from keyhole.model.state import StateDescriptor
from keyhole.protocol.receipts import StageOrder
from keyhole.spark.declaration.class_version import check_class, upgrade_from, version_of
from keyhole.spark.declaration.user_rows import rows_that_put
from keyhole.spark.worker.base_reader import BaseReader
from keyhole.spark.worker.plain import check_plain

_KEYS_PER_REQUEST = 2_000
_NO_DIGEST = bytes(DIGEST_BYTES)


@runtime_checkable
class Aggregator(Protocol):
    """How the rows of a key become one result. An accumulator holds what came so far, and is of a type of your own.

        class Mean:
            def create(self):
                return [0, 0.0]

            def add(self, accumulator, row):
                return [accumulator[0] + 1, accumulator[1] + row.celsius]

            def merge(self, one, other):
                return [one[0] + other[0], one[1] + other[1]]

            def result(self, accumulator):
                return {"count": accumulator[0], "mean": accumulator[1] / accumulator[0]}

    Runs in Spark's Python workers, one call at a time in each, so it must be picklable or importable there. A batch
    that is run again must give the same: nothing here may depend on time, on chance, or on what was called before.
    Where the order of rows matters, say `order_by`. What a method raises ends the query.

    An aggregator may also have:
        encode(accumulator) -> bytes, decode(bytes) -> accumulator: How accumulators are stored; default: MessagePack,
            for accumulators of plain data (a tuple comes back as a list; others, as sets and decimals, are refused).
        commutative: True where the encoded accumulator is the same whatever the order of rows and of merges. A batch
            that is run again and gives another one is then found out.
        takes_running_results: True where a row takes the place of what was added of the same thing before, as a highest
            value does. Only then may the state be fed by a streaming aggregation in update mode.
        version, upgrade(stored, version) -> accumulator: Where the shape or the meaning of accumulators has changed: a
            whole number that grows (default: 1), and what makes of an accumulator of an earlier version one of this.
            `stored` is as it was given by that version: plain data; or, where the aggregator has `decode`, bytes.
    """

    def create(self) -> Any:
        """A new accumulator, of no rows. Called for each key of a partition."""

    def add(self, accumulator: Any, row: Any) -> Any:
        """The accumulator with one row more. It may be changed in place, and must be returned.

        Args:
            row: The columns as attributes, as Python's values (docs/values.md).
        """

    def merge(self, one: Any, other: Any) -> Any:
        """The accumulator of the rows of both. It is called with what the key's owner held, and what the epoch brought.

        Args:
            one: Of the rows that came before those of `other`.
        """

    def result(self, accumulator: Any) -> Mapping[str, Any] | Sequence[Any]:
        """What readers get: the fields of the declared result, by name or in their order; else ValueMismatch."""


@dataclass(frozen=True)
class Aggregation:
    """An aggregator, and the columns of the rows that it gets. Picklable if the aggregator is."""

    aggregator: Aggregator
    columns: tuple[str, ...]

    def encode(self, accumulator: Any) -> bytes:
        """The accumulator as it is stored."""
        encode = getattr(self.aggregator, "encode", msgspec.msgpack.encode)
        return bytes(encode(accumulator))

    def decode(self, data: bytes) -> Any:
        """The accumulator of the bytes that `encode` gave."""
        return getattr(self.aggregator, "decode", msgspec.msgpack.decode)(data)

    def base(self, descriptor: StateDescriptor, base: Base) -> Any:
        """The accumulator that an owner held. Raises as `check`, of one that is made of an earlier version's."""
        if base.version == version_of(self.aggregator):
            return self.decode(base.accumulator)
        upgrade = upgrade_from(descriptor, self.aggregator, base.version)
        own = hasattr(self.aggregator, "decode")
        accumulator = upgrade(base.accumulator if own else msgspec.msgpack.decode(base.accumulator), base.version)
        self.check(descriptor.state, accumulator)
        return accumulator

    def check(self, state: str, accumulator: Any) -> None:
        """Passes where the accumulator comes back from MessagePack as what it is; else raises ValueMismatch."""
        if not hasattr(self.aggregator, "encode"):
            check_plain(state, "an accumulator of the aggregator", accumulator, "give the aggregator encode and decode")

    @property
    def commutative(self) -> bool:
        """Whether equal rows give equal bytes in whatever order they come."""
        return bool(getattr(self.aggregator, "commutative", False))


@dataclass
class _RowsOfKey:
    """What a partition's rows of one key amount to. `cleared`: what was stored before doesn't count."""

    accumulator: Any = None
    rows: int = 0
    cleared: bool = False


def aggregated(
    order: StageOrder,
    descriptor: StateDescriptor,
    aggregation: Aggregation,
    batches: Iterable[pa.RecordBatch],
    connect: Connect,
) -> Iterator[pa.RecordBatch]:
    """One staged row per key: its accumulator and result, with the partition's rows in them.

    Holds in memory one accumulator per key of the partition.

    Args:
        batches: The key columns, and those of the aggregation.

    Raises:
        NotTaken: An owner did not answer.
        KeyholeError: As columnar.encode; and ValueMismatch where a result is not as declared, or an accumulator
            not plain data; InvalidConfiguration where the driver has another version of the aggregator.
    """
    check_class(descriptor, aggregation.aggregator)
    gathered = _gather(descriptor, aggregation, batches)
    reader = BaseReader(order, descriptor.state, connect)
    keys = sorted(gathered)
    for start in range(0, len(keys), _KEYS_PER_REQUEST):
        some = keys[start : start + _KEYS_PER_REQUEST]
        bases = reader.bases([key for key in some if not gathered[key].cleared])
        first = gathered[some[0]]
        if first.rows:
            # It stands for all of so many: walking through each accumulator would cost more than encoding it.
            aggregation.check(descriptor.state, first.accumulator)
        rows = [_staged_row(descriptor, aggregation, gathered[key], bases.get(key)) for key in some]
        yield pa.record_batch({STORAGE_KEY: pa.array(some, pa.binary()), VALUE: pa.array(rows, pa.binary())})


def _gather(
    descriptor: StateDescriptor, aggregation: Aggregation, batches: Iterable[pa.RecordBatch]
) -> dict[bytes, _RowsOfKey]:
    gathered: dict[bytes, _RowsOfKey] = {}
    create, add = aggregation.aggregator.create, aggregation.aggregator.add
    for batch in batches:
        keys, ops = key_names(batch, descriptor).to_pylist(), row_ops(batch, descriptor)
        puts = [op == Op.PUT for op in ops]
        rows = rows_that_put(batch, puts, aggregation.columns)
        for key, put in zip(keys, puts, strict=True):
            of = gathered.get(key)
            if of is None:
                of = gathered[key] = _RowsOfKey(create())
            if put:
                of.accumulator = add(of.accumulator, next(rows))
                of.rows += 1
            else:
                gathered[key] = _RowsOfKey(create(), cleared=True)
    return gathered


def _staged_row(
    descriptor: StateDescriptor, aggregation: Aggregation, of: _RowsOfKey, base: Base | None
) -> bytes | None:
    if of.cleared and not of.rows:
        return None
    accumulator = of.accumulator
    digest = struct.pack(">I", crc32(aggregation.encode(accumulator))) if aggregation.commutative else _NO_DIGEST
    if base is not None:
        accumulator = aggregation.aggregator.merge(aggregation.base(descriptor, base), accumulator)
    row = result_row(descriptor, aggregation.aggregator.result(accumulator))
    return staged_aggregate(row, aggregation.encode(accumulator), version_of(aggregation.aggregator), digest)


def staged_aggregate(row: bytes, accumulator: bytes, version: int, digest: bytes = _NO_DIGEST) -> bytes:
    """A staged row, as the state server's strategy for aggregating states takes it.

    Args:
        version: Of the class that has made the accumulator.
        digest: See DIGEST_BYTES.
    """
    return digest + Aggregate(0, row, accumulator, None, version).encode()


def result_row(descriptor: StateDescriptor, result: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """What readers get, encoded.

    Raises:
        ValueMismatch: It is not as declared.
    """
    fields = _fields(descriptor)
    if isinstance(result, (str, bytes, Set)) or not isinstance(result, Collection):
        raise _mismatch(descriptor, f"is a {type(result).__name__}, not its fields by name or in their order")
    if isinstance(result, Mapping):
        if result.keys() != {name for name, _ in fields}:
            raise _mismatch(descriptor, f"has the fields {', '.join(result)}")
        result = [result[name] for name, _ in fields]
    if len(result) != len(fields):
        raise _mismatch(descriptor, f"has {len(result)} fields")
    stored = []
    for (name, convert), value in zip(fields, result, strict=True):
        try:
            stored.append(convert(value))
        except (TypeError, ValueError, OverflowError):
            # Not as the cause: it may hold the value.
            what = (
                f"has a {type(value).__name__} in its field {name}, which does not fit (docs/values.md says what would)"
            )
            raise _mismatch(descriptor, what) from None
    return encode_row(descriptor.value.version, stored)


@functools.lru_cache(maxsize=64)
def _fields(descriptor: StateDescriptor) -> list[tuple[str, Callable[[Any], Any]]]:
    return [(field.name, optional(_from_result(field.type))) for field in descriptor.value.fields]


def _from_result(name: str) -> Callable[[Any], Any]:
    """As a default is given; a map also as its pairs, which an operator's elements often are, and as Arrow gives it."""
    from_given = value_type(name).from_given
    if not name.startswith("map<"):
        return from_given
    return lambda value: from_given(dict(value) if _are_pairs(value) else value)


def _are_pairs(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(of, (list, tuple)) and len(of) == 2 for of in value)


def _mismatch(descriptor: StateDescriptor, what: str) -> ValueMismatch:
    wanted = ", ".join(field.name for field in descriptor.value.fields)
    return ValueMismatch(
        f"the result of the aggregator of state {descriptor.state!r} {what}; declared are {wanted}",
        state=descriptor.state,
    )
