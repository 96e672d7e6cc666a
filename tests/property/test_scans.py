"""A scan gives what a model gives: entries of any types, any epochs, any range, from every kind of store."""

from __future__ import annotations

import asyncio
import functools
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from keyhole.client.wire.scanner import Scan, Scanner
from keyhole.client.wire.state_reads import StateReads
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.row_codec import encode_row
from keyhole.model.read import ReadBounds
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.stores.base import StoreEngine, StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.stores.rocksdb.engine import RocksdbEngine
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.clock import ManualClock
from keyhole.v1 import query_pb2 as pb
from services.state_server.read.scans import ScanLimits
from services.state_server.read.standing import Lease
from services.state_server.read.table import Table
from services.state_server.registry import Registry
from services.state_server.servicers.query import QueryServicer
from tests.support.entries import Epochs
from tests.support.examples import examples
from tests.support.key_strategies import COLUMNS, keys, order

Values = tuple[Any, ...]

LIMIT_BYTES = 1 << 20


class Asked(NamedTuple):
    """A scan; bounds of as many columns as they have values."""

    key: Values
    start: Values
    stop: Values
    descending: bool
    limit: int | None


class Drawn(NamedTuple):
    """A state, its epochs (a row's number by key and map key; None deletes), and scans of it."""

    of: StateDescriptor
    epochs: list[dict[tuple[Values, Values], int | None]]
    scans: list[Asked]
    page_entries: int


def descriptor(key: tuple[KeyColumn, ...], map_key: tuple[KeyColumn, ...]) -> StateDescriptor:
    renamed = tuple(KeyColumn(f"m{number}", column.type) for number, column in enumerate(map_key))
    schema = ValueSchema(1, (ValueField("n", "bigint"),))
    return StateDescriptor("app", "state", "main", StateKind.MAP, 16, key, schema, topic_id="topic", map_key=renamed)


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    of = descriptor(draw(COLUMNS), draw(COLUMNS))
    # Few of each, so that they meet.
    some_keys = draw(st.lists(keys(of.key), min_size=1, max_size=3))
    map_keys = draw(st.lists(keys(of.map_key), min_size=1, max_size=12))
    entry = st.tuples(st.sampled_from(some_keys), st.sampled_from(map_keys))
    number = st.none() | st.integers(0, 1000)
    epochs = draw(st.lists(st.dictionaries(entry, number, max_size=30), max_size=4))
    bound = st.sampled_from(map_keys) | keys(of.map_key)
    columns = st.integers(0, len(of.map_key))
    scan = st.builds(
        lambda key, start, first, stop, last, descending, limit: Asked(
            key, start[:first], stop[:last], descending, limit
        ),
        st.sampled_from(some_keys),
        bound,
        columns,
        bound,
        columns,
        st.booleans(),
        st.none() | st.integers(1, 15),
    )
    return Drawn(of, epochs, draw(st.lists(scan, min_size=1, max_size=5)), draw(st.integers(1, 5)))


def long_key() -> Drawn:
    """More entries than a store reads at a time, in ranges whose bounds are entries themselves."""
    of = descriptor((KeyColumn("k", KeyType.STRING),), (KeyColumn("m", KeyType.INT),))
    of_one_key = {(("a",), (number,)): number for number in range(-30, 30)}
    bounds: list[tuple[Values, Values]] = [((), ()), ((-20,), (25,)), ((7,), (8,)), ((8,), (7,))]
    scans = [
        Asked(("a",), start, stop, descending, limit)
        for start, stop in bounds
        for descending in (False, True)
        for limit in (None, 40)
    ]
    return Drawn(of, [of_one_key, {(("a",), (0,)): None, (("b",), (1,)): 1}], scans, 7)


class _Call:
    """As a stub's: the pages of a servicer, over the wire's bytes."""

    def __init__(self, pages: AsyncIterator[pb.ScanResponse]) -> None:
        self._pages = pages

    async def __aiter__(self) -> AsyncIterator[pb.ScanResponse]:
        async for page in self._pages:
            yield pb.ScanResponse.FromString(page.SerializeToString())

    def cancel(self) -> None:
        """Nothing is under way."""


class _Stub:
    def __init__(self, servicer: QueryServicer) -> None:
        self._servicer = servicer

    def Scan(self, request: pb.ScanRequest, timeout: float) -> _Call:  # noqa: N802 - gRPC
        return _Call(self._servicer.Scan(pb.ScanRequest.FromString(request.SerializeToString()), None))  # type: ignore[arg-type]


class _Links:
    """One target, which is never lost."""

    def __init__(self, stub: _Stub) -> None:
        self._link = SimpleNamespace(target="server-a", stub=stub, heard=lambda: None)

    def next(self) -> SimpleNamespace:
        return self._link


@contextmanager
def table_of(of: StateDescriptor, made: Callable[[StoreLimits], StoreEngine]) -> Iterator[Table]:
    with tempfile.TemporaryDirectory() as directory:
        engine = made(StoreLimits(Path(directory), LIMIT_BYTES))
        try:
            yield Table("server-a", of, engine.open(of.application, of.state, of.topic_id), Lease(ManualClock(), 3.0))
        finally:
            engine.close()


def modelled(model: dict[tuple[Values, Values], int], asked: Asked) -> list[tuple[Values, int]]:
    """By the order of values, not of bytes."""
    start, stop = order(asked.start), order(asked.stop)
    found = [
        (map_key, number)
        for (key, map_key), number in model.items()
        if key == asked.key
        and order(map_key)[: len(start)] >= start
        and (not stop or order(map_key)[: len(stop)] < stop)
    ]
    found.sort(key=lambda entry: order(entry[0]), reverse=asked.descending)
    return found[: asked.limit]


async def read(table: Table, asked: Asked, page_entries: int) -> tuple[list[tuple[Values, int]], int]:
    """Its entries, and their epoch."""
    of = table.descriptor
    registry = Registry("server-a", "incarnation", lambda: "", 0, 511)
    registry.tables[of.application, of.state] = table
    stub = _Stub(
        QueryServicer(
            registry,
            ManualClock(),
            functools.partial(MemoryChangelog, MemoryKafka()),
            ScanLimits(page_entries=page_entries, turn_entries=3),
        )
    )

    async def describe(application: str, state: str, seconds: float) -> StateDescriptor:
        return of

    reads = StateReads(None, of.application, of.state, describe, lambda: None)  # type: ignore[arg-type]  # no lookups
    key = asked.key[0] if len(asked.key) == 1 else asked.key
    scan = Scan(
        of.application,
        of.state,
        key,
        asked.start,
        asked.stop,
        ReadBounds(),
        descending=asked.descending,
        limit=asked.limit,
    )
    deadline = asyncio.get_running_loop().time() + 60
    entries = await Scanner(_Links(stub)).entries(scan, lambda: reads, deadline)
    single = len(of.map_key) == 1
    return [((map_key,) if single else map_key, value.n) for map_key, value in entries], entries.epoch


def check(drawn: Drawn, made: Callable[[StoreLimits], StoreEngine]) -> None:
    with table_of(drawn.of, made) as table:
        epochs, model = Epochs(table), dict[tuple[Values, Values], int]()
        epochs.publish()
        for changes in drawn.epochs:
            stored = {(*key, *entry): None if n is None else encode_row(1, [n]) for (key, entry), n in changes.items()}
            epochs.commit(stored)
            for at, number in changes.items():
                if number is None:
                    model.pop(at, None)
                else:
                    model[at] = number
        for asked in drawn.scans:
            found = asyncio.run(read(table, asked, drawn.page_entries))
            assert found == (modelled(model, asked), epochs.epoch)
        table.close()


@given(drawn())
@example(long_key())
def test_a_scan_of_memory_gives_what_the_model_gives(drawn: Drawn) -> None:
    check(drawn, lambda limits: MemoryEngine(limits.bytes))


@given(drawn())
@settings(max_examples=examples(30))
@example(long_key())
def test_a_scan_of_lmdb_gives_what_the_model_gives(drawn: Drawn) -> None:
    check(drawn, LmdbEngine)


@given(drawn())
@settings(max_examples=examples(30))
@example(long_key())
def test_a_scan_of_rocksdb_gives_what_the_model_gives(drawn: Drawn) -> None:
    check(drawn, RocksdbEngine)


@given(drawn())
def test_every_entry_is_in_the_range_of_its_key_and_of_no_other(drawn: Drawn) -> None:
    codec = StateCodec(drawn.of)
    entries = {at for changes in drawn.epochs for at in changes}
    for asked in drawn.scans:
        key = asked.key[0] if len(asked.key) == 1 else asked.key
        within = codec.entry_range(key, asked.start, asked.stop)
        assert codec.prefix(key) == within.prefix
        expected = {at for at in entries if modelled({at: 0}, asked._replace(limit=None))}
        stored = {at: codec.storage_key((*at[0], *at[1])) for at in entries}
        assert {at for at in entries if within.start <= stored[at] and not _beyond(within.stop, stored[at])} == expected
        # Wherever the last key group's end is meant, there is nothing after it.
        assert within.stop is not None or within.prefix.strip(b"\xff") == b""


def _beyond(stop: bytes | None, key: bytes) -> bool:
    return stop is not None and key >= stop
