"""All keys of a state: a bare walk of its store, what a server makes of it, and what reaches a client, in one run.

uv run python -m benchmarks.scan_all [--rows 1000000] [--repeats 3]

It needs neither Kafka nor Spark: a store in LMDB, and one server in a process of its own. Prints a line of JSON for
each way, with rows a second and the ratio to the bare walk of the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from keyhole import AsyncClient, Predicate, field
from keyhole import aggregates as agg
from keyhole.clock import SystemClock
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.row_codec import encode_row
from keyhole.encoding.selected_entries import SelectedEntries
from keyhole.model.epoch import START, EpochStamp, Position
from keyhole.model.selection import Selection
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.rpc.server import RpcServer
from keyhole.stores.base import Advance, Batch, StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.v1 import query_pb2_grpc
from services.state_server.read.scans import ScanLimits, Scans
from services.state_server.read.standing import Lease, Standing
from services.state_server.read.table import Table
from services.state_server.registry import Registry
from services.state_server.servicers.query import QueryServicer

APPLICATION, STATE = "benchmark", "sensors"
KEY_GROUPS = 8
# One row in a hundred, and all but one in a hundred.
FEW, MOST = field("max") < 1.0, field("max") >= 1.0


def main() -> None:
    """The store, then the server over it, then a client of that."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        with table_of(Path(directory)) as table:
            fill(table, options.rows)
        with table_of(Path(directory)) as table:
            publish(table)
            walked = measured("bare walk", options, lambda: walk(table), None)
            for name, where, fields in (
                ("pages", None, None),
                ("pages of one row in a hundred", FEW, None),
                ("pages of one field", None, ("max",)),
            ):
                select = SelectedEntries(table.descriptor, Selection(where, fields))
                measured(name, options, lambda select=select: asyncio.run(pages(table, select)), walked)  # type: ignore[misc]
        asyncio.run(at_client(Path(directory), options, walked))


def described() -> StateDescriptor:
    """sensor -> max, city, count: small rows."""
    fields = (ValueField("max", "double"), ValueField("city", "string"), ValueField("count", "bigint"))
    key = (KeyColumn("sensor", KeyType.STRING),)
    schema = ValueSchema(1, fields)
    return StateDescriptor(APPLICATION, STATE, "main", StateKind.VALUE, KEY_GROUPS, key, schema, topic_id="topic")


@contextmanager
def table_of(directory: Path) -> Iterator[Table]:
    engine = LmdbEngine(StoreLimits(directory, 8 << 30))
    lease = Lease(SystemClock(), 3600.0)
    lease.confirm()
    table = Table("server-1", described(), engine.open(APPLICATION, STATE, "topic"), lease)
    try:
        yield table
    finally:
        table.close()
        engine.close()


def fill(table: Table, rows: int) -> None:
    codec = StateCodec(described())
    stored = sorted(
        (codec.storage_key(f"sensor-{at:08d}"), encode_row(1, [at % 10_000 / 100, f"city-{at % 50}", at]))
        for at in range(rows)
    )
    after = Position(1, 1, 1, 0, 1000)
    table.store.apply(Batch(puts=stored, advances={group: Advance(START, after) for group in range(KEY_GROUPS)}))


def publish(table: Table) -> None:
    table.given.taken_over()
    standing = Standing(EpochStamp(1, 1, 1000, 0), assignment_version=1)
    table.publish(table.store.snapshot(), frozenset(range(KEY_GROUPS)), standing, {}, 1)


def walk(table: Table) -> int:
    """Each entry, and nothing done with it."""
    snapshot, count = table.store.snapshot(), 0
    for group in range(KEY_GROUPS):
        for _ in snapshot.items(group):
            count += 1
    snapshot.close()
    return count


async def pages(table: Table, select: SelectedEntries) -> int:
    """As a server makes them, but for the messages. Counts what was looked at."""
    scans = Scans(ScanLimits())
    for group in range(KEY_GROUPS):
        with scans.open(lambda group=group: table.scan(table.codec.group_range(group))) as scanned:  # type: ignore[misc]
            for page in scans.pages(scanned, 0, select):
                select.values(page.rows)
    return table.store.size().entries


def measured(name: str, options: argparse.Namespace, read: Callable[[], int], walked: float | None) -> float:
    """Prints rows a second, and returns it."""
    rates = []
    for _ in range(options.repeats):
        began = time.perf_counter()
        rates.append(read() / (time.perf_counter() - began))
    return shown(name, rates, walked)


def shown(name: str, rates: list[float], walked: float | None) -> float:
    rate = statistics.median(rates)
    line: dict[str, Any] = {"benchmark": "scan_all", "way": name, "rows_per_second": round(rate)}
    line |= {"spread": [round(min(rates)), round(max(rates))]}
    if walked:
        line["of_bare_walk"] = round(rate / walked, 3)
    print(json.dumps(line))
    return rate


async def at_client(directory: Path, options: argparse.Namespace, walked: float) -> None:
    """Rows that are looked at in a second, until the last that is wanted has reached a client of its own process."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(directory, theirs))
    server.start()
    try:
        async with AsyncClient(ours.recv(), timeout=600) as client:
            ways: tuple[tuple[str, Predicate | None, dict[str, Any]], ...] = (
                ("client: all", None, {}),
                ("client: keys alone", None, {"keys_only": True}),
                ("client: one field", None, {"fields": ["max"]}),
                ("client: one row in a hundred", FEW, {}),
            )
            for name, where, more in ways:
                rates = []
                for _ in range(options.repeats):
                    began = time.perf_counter()
                    async with client.scan_all(APPLICATION, STATE, where=where, **more) as scan:
                        while await scan.page():
                            pass
                    rates.append(options.rows / (time.perf_counter() - began))
                shown(name, rates, walked)
            for name, asked in (("count", agg.count()), ("avg", agg.avg("max")), ("top 10", agg.top(10, "max"))):
                rates = []
                for _ in range(options.repeats):
                    began = time.perf_counter()
                    await client.aggregate(APPLICATION, STATE, {"x": asked}, where=MOST)
                    rates.append(options.rows / (time.perf_counter() - began))
                shown(f"client: {name} where", rates, walked)
    finally:
        ours.send(None)
        await asyncio.to_thread(server.join)


def serve(directory: Path, pipe: Connection) -> None:
    """Until it is told to end."""
    asyncio.run(serving(directory, pipe))


async def serving(directory: Path, pipe: Connection) -> None:
    with table_of(directory) as table:
        publish(table)
        registry = Registry("server-1", "incarnation", lambda: "", 0, 511)
        registry.tables[APPLICATION, STATE] = table
        rpc = RpcServer("benchmark", "127.0.0.1", 0, None)
        rpc.add(
            query_pb2_grpc.add_QueryServicer_to_server,
            QueryServicer(registry, SystemClock(), functools.partial(MemoryChangelog, MemoryKafka())),
            "keyhole.v1.Query",
        )
        await rpc.start()
        pipe.send(rpc.address)
        await asyncio.to_thread(pipe.recv)
        await rpc.stop(0)


if __name__ == "__main__":
    main()
