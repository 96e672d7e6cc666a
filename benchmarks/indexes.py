"""What an index costs writes and bytes, and what it saves scans, in one run.

uv run python -m benchmarks.indexes [--rows 200000] [--repeats 3] [--store lmdb rocksdb]

It needs neither Kafka nor Spark: a store, and what a server makes of a scan but for the messages. Writes are epochs of
5,000 rows: new ones, then such as replace others, half of which change the indexed field. Prints a line of JSON each.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.batches import spread
from keyhole import Predicate, field
from keyhole.clock import SystemClock
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.row_codec import encode_row
from keyhole.encoding.selected_entries import SelectedEntries
from keyhole.encoding.storage_key import group_of
from keyhole.model.epoch import START, EpochStamp, Position
from keyhole.model.selection import Selection
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.stores.base import Advance, Batch, StoreEngine, StoreLimits
from keyhole.stores.indexed import IndexedStore
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.rocksdb.engine import RocksdbEngine
from services.state_server.read.indexed_scans import IndexRule
from services.state_server.read.scans import ScanLimits, Scans
from services.state_server.read.standing import Lease, Standing
from services.state_server.read.table import Table

KEY_GROUPS = 8
EPOCH_ROWS = 5_000
ENGINES: dict[str, Callable[[StoreLimits], StoreEngine]] = {"lmdb": LmdbEngine, "rocksdb": RocksdbEngine}
ALWAYS, NEVER = IndexRule(1, 1 << 40), IndexRule(1 << 40, 0)
Epoch = list[tuple[bytes, bytes]]


class BlindStore(IndexedStore):
    """Looks for no row that it replaces: the entries of these stay, as if they were removed later."""

    def _change(self, step: Any, number: int, changes: Any, stored: Any, known: Any) -> None:
        super()._change(step, number, changes, None, {})


WAYS: dict[str, Callable[..., IndexedStore]] = {
    "no index": IndexedStore,
    "index": IndexedStore,
    "index, nothing read": BlindStore,
}


def described(index: Sequence[str] = ()) -> StateDescriptor:
    """order -> customer, total, and fields that have 10,000, 100 and 10 values."""
    fields = [ValueField("customer", "string"), ValueField("total", "double")]
    fields += [ValueField(name, "bigint") for name in ("of_10000", "of_100", "of_10")]
    key, schema = (KeyColumn("order", KeyType.STRING),), ValueSchema(1, tuple(fields))
    kind = StateKind.VALUE
    return StateDescriptor(
        "benchmark", "orders", "main", kind, KEY_GROUPS, key, schema, topic_id="topic", index=tuple(index)
    )


def main() -> None:
    """Each store, written to and then scanned."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--store", nargs="*", choices=ENGINES, default=list(ENGINES))
    options = parser.parse_args()
    for store in options.store:
        written(store, options)
        scanned(store, options)


def epochs(rows: int) -> tuple[list[Epoch], list[Epoch]]:
    """All orders, once; then a half as many rows of orders that are there."""
    dice = random.Random(1)
    storage_key = StateCodec(described()).storage_key

    def entry(order: int, customer: int) -> tuple[bytes, bytes]:
        fields = [f"customer-{customer:06d}", dice.random(), customer, customer % 100, customer % 10]
        return storage_key(f"order-{order:08d}"), encode_row(1, fields)

    of = [dice.randrange(10_000) for _ in range(rows)]
    orders = list(range(rows))
    dice.shuffle(orders)
    new = [entry(order, of[order]) for order in orders]
    again = [
        entry(order, of[order] if dice.random() < 0.5 else dice.randrange(10_000))
        for order in dice.choices(orders, k=rows // 2)
    ]
    return _cut(new), _cut(again)


def _cut(entries: Epoch) -> list[Epoch]:
    return [sorted(dict(entries[at : at + EPOCH_ROWS]).items()) for at in range(0, len(entries), EPOCH_ROWS)]


def apply(store: IndexedStore, some: Sequence[Epoch], positions: dict[int, Position], number: int) -> int:
    """The epochs, one after the other. Returns the last one's number."""
    for epoch in some:
        number += 1
        after = Position(number, number, 1, 0, 1000)
        groups = {group_of(key) for key, _ in epoch}
        store.apply(Batch(epoch, (), {group: Advance(positions.get(group, START), after) for group in groups}))
        positions |= dict.fromkeys(groups, after)
    return number


def written(kind: str, options: argparse.Namespace) -> None:
    """Rows a second, and bytes, by way; of each repeat all ways, so that they have the same machine."""
    new, again = epochs(options.rows)
    rates: dict[tuple[str, str], list[float]] = {}
    sizes: dict[str, int] = {}
    for _ in range(options.repeats):
        for way, made in WAYS.items():
            with tempfile.TemporaryDirectory() as directory:
                engine = ENGINES[kind](StoreLimits(Path(directory), 8 << 30))
                of = described(() if way == "no index" else ("customer",))
                store = made(engine.open("benchmark", "orders", "topic"), of)
                positions: dict[int, Position] = {}
                number = 0
                for what, some in (("new rows", new), ("replaced rows", again)):
                    began = time.perf_counter()
                    number = apply(store, some, positions, number)
                    seconds = time.perf_counter() - began
                    rates.setdefault((what, way), []).append(sum(map(len, some)) / seconds)
                sizes[way] = store.size().bytes
                engine.close()
    for (what, way), found in rates.items():
        ratios = [one / base for one, base in zip(found, rates[what, "no index"], strict=True)]
        _print(kind, f"{what}: {way}", rows_per_second=spread(found, 0), of_no_index=spread(ratios, 3))
    for way, size in sizes.items():
        _print(kind, f"bytes: {way}", bytes=size, bytes_a_row=round(size / options.rows, 1))


def scanned(kind: str, options: argparse.Namespace) -> None:
    """Seconds of a whole scan by each predicate, with the index and without."""
    asked: dict[str, Predicate] = {
        "one in 10,000, =": field("of_10000") == 77,
        "one in 100, =": field("of_100") == 77,
        "one in 10, =": field("of_10") == 7,
        "one in 10,000, range": field("of_10000").between(77, 77.5),
        "one in 100, range": field("of_10000") < 100,
        "one in 20, range": field("of_10000") < 500,
        "one in 10, range": field("of_10000") < 1000,
        "one in 4, range": field("of_10000") < 2500,
        "one in 2, range": field("of_10000") < 5000,
    }
    with tempfile.TemporaryDirectory() as directory, _table(kind, Path(directory), options.rows) as table:
        for name, where in asked.items():
            by: dict[str, list[float]] = {"filter": [], "index": [], "as the rule has it": []}
            for _ in range(options.repeats):
                counts = set()
                for way, rule in zip(by, (NEVER, ALWAYS, IndexRule()), strict=True):
                    table.index_rule = rule
                    began = time.perf_counter()
                    counts.add(asyncio.run(pages(table, where)))
                    by[way].append(time.perf_counter() - began)
                assert len(counts) == 1
            for way in ("index", "as the rule has it"):
                ratios = [base / one for one, base in zip(by[way], by["filter"], strict=True)]
                _print(
                    kind,
                    f"{name}: {way}",
                    milliseconds=spread([1000 * one for one in by[way]], 2),
                    filtered_milliseconds=spread([1000 * one for one in by["filter"]], 2),
                    times_faster=spread(ratios, 2),
                )


@contextmanager
def _table(kind: str, directory: Path, rows: int) -> Iterator[Table]:
    engine = ENGINES[kind](StoreLimits(directory, 8 << 30))
    of = described(("of_10000", "of_100", "of_10"))
    store = IndexedStore(engine.open("benchmark", "orders", "topic"), of)
    new, _ = epochs(rows)
    apply(store, new, {}, 0)
    lease = Lease(SystemClock(), 3600.0)
    lease.confirm()
    table = Table("server-1", of, store, lease)
    table.given.taken_over()
    standing = Standing(EpochStamp(1, 1, 1000, 0), assignment_version=1)
    table.publish(store.snapshot(), frozenset(range(KEY_GROUPS)), standing, {}, 1)
    try:
        yield table
    finally:
        table.close()
        engine.close()


async def pages(table: Table, where: Predicate) -> int:
    """As a server makes them, but for the messages. Counts what was found."""
    scans, found = Scans(ScanLimits()), 0
    select = SelectedEntries(table.descriptor, Selection(where))
    for group in range(KEY_GROUPS):
        with scans.open(
            lambda group=group: table.scan(table.codec.group_range(group), indexed=select.indexed)  # type: ignore[misc]
        ) as scanned:
            for page in scans.pages(scanned, 0, select):
                found += len(select.values(page.rows))
    return found


def _print(kind: str, way: str, **figures: Any) -> None:
    print(msgspec.json.encode({"benchmark": "indexes", "store": kind, "way": way} | figures).decode(), flush=True)


if __name__ == "__main__":
    main()
