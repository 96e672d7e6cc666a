"""Reads of a mirror, beside a Python dict, beside lookups, and beside Redis with client-side caching, in one run.

uv run python -m benchmarks.mirror [--rows 100000] [--keys 10000] [--repeats 5]

It needs redis-server on PATH, and neither Kafka nor Spark: one server over a store in LMDB, and one Redis, each in a
process of its own. Every key is read once before it is measured, so that Redis answers from its client's cache. Prints
a line of JSON for each way, with reads a second, their spread, and the ratio to the dict of the same run; and what the
mirror took to fill, in rows a second and in bytes an entry.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis
from redis.cache import CacheConfig
from redis.connection import CacheProxyConnection

from benchmarks.redis_server import redis_server
from benchmarks.scan_all import APPLICATION, STATE, described, fill, serve, table_of
from keyhole import AsyncClient, Client
from keyhole.client import Mirror
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.row_codec import encode_row

PATH = f"{APPLICATION}/{STATE}"
_AT_ONCE = 256
# As often as what asks a server, each way that asks nobody is read so many times.
_MORE = 20


def main() -> None:
    """A server, a mirror of it, a Redis, and the same keys read of each in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=10_000, help="that are read, of all")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        (directory / "store").mkdir()
        with table_of(directory / "store") as table:
            fill(table, options.rows)
        address = stack.enter_context(serving(directory / "store"))
        port, _ = stack.enter_context(redis_server(directory / "redis"))
        client = stack.enter_context(Client(address, timeout=600))
        mirror = filled(client, stack, options.rows)
        wanted = [f"sensor-{at:08d}" for at in random.Random(1).sample(range(options.rows), options.keys)]
        put_in_redis(port, mirror, wanted)
        ways = ways_of(mirror, client, address, port, wanted)
        measured = measure(ways, wanted, options.repeats)
    tell(measured)


@contextmanager
def serving(store: Path) -> Iterator[str]:
    """The address of a server of its own process."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(store, theirs))
    server.start()
    try:
        yield ours.recv()
    finally:
        ours.send(None)
        server.join()


def filled(client: Client, stack: ExitStack, rows: int) -> Mirror[Any]:
    """A mirror of all rows. Prints how long it took, and then what another one takes in memory."""
    limits = {"max_entries": rows, "max_bytes": 8 << 30, "timeout": 600}
    began = time.perf_counter()
    mirror = stack.enter_context(client.mirror(PATH, **limits))  # type: ignore[arg-type]
    rate = rows / (time.perf_counter() - began)
    tracemalloc.start()
    with client.mirror(PATH, **limits) as other:  # type: ignore[arg-type]
        taken, _ = tracemalloc.get_traced_memory()
        line = {"rows_per_second": round(rate), "bytes_an_entry": round(taken / rows)}
        line["counted"] = round(other.size_bytes / rows)
    tracemalloc.stop()
    print(json.dumps({"benchmark": "mirror", "way": "filled", "rows": rows, **line}))
    return mirror


def put_in_redis(port: int, mirror: Mirror[Any], keys: Sequence[str]) -> None:
    """The rows of these keys, as a server stores them."""
    pipeline = redis.Redis(port=port).pipeline()
    for key, answer in zip(keys, mirror.get_many(keys), strict=True):
        pipeline.set(key, encode_row(1, [answer.value[name] for name in answer.value]))
    pipeline.execute()


def ways_of(
    mirror: Mirror[Any], client: Client, address: str, port: int, keys: Sequence[str]
) -> Mapping[str, tuple[Callable[[Sequence[str]], None], int]]:
    """By name: what reads these keys, and how many times in a measurement."""
    # It asks for Redis 7.4, "to maximize compatibility"; what it needs, Redis has had since 6.
    CacheProxyConnection.MIN_ALLOWED_VERSION = "6.0.0"
    values = {key: mirror.get(key).value for key in keys}
    plain = redis.Redis(port=port)
    cached = redis.Redis(port=port, protocol=3, cache_config=CacheConfig(max_size=2 * len(keys)))
    decode = StateCodec(described()).decode_row

    def each(read: Callable[[str], Any]) -> Callable[[Sequence[str]], None]:
        def run(some: Sequence[str]) -> None:
            for key in some:
                read(key)

        return run

    def of_redis(connection: redis.Redis) -> Callable[[str], Any]:
        get = connection.get
        return lambda key: decode(get(key))  # type: ignore[arg-type]

    def in_hundreds(some: Sequence[str]) -> None:
        for first in range(0, len(some), 100):
            mirror.get_many(some[first : first + 100])

    return {
        "dict": (each(values.__getitem__), _MORE),
        "mirror.get": (each(mirror.get), _MORE),
        "mirror.get_many of 100": (in_hundreds, _MORE),
        "mirror.fetch": (each(lambda key: mirror.fetch(key, max_staleness=3600)), _MORE),
        "redis-py, from its cache": (each(of_redis(cached)), _MORE // 4),
        "redis-py, without a cache": (each(of_redis(plain)), 1),
        "client.get, one at a time": (each(lambda key: client.get(APPLICATION, STATE, key)), 1),
        f"client.get, {_AT_ONCE} at a time": (lambda some: asyncio.run(gathered(address, some)), 1),
    }


async def gathered(address: str, keys: Sequence[str]) -> None:
    async with AsyncClient(address, timeout=600) as client:
        for first in range(0, len(keys), _AT_ONCE):
            some = keys[first : first + _AT_ONCE]
            await asyncio.gather(*(client.get(APPLICATION, STATE, key) for key in some))


def measure(
    ways: Mapping[str, tuple[Callable[[Sequence[str]], None], int]], keys: Sequence[str], repeats: int
) -> Mapping[str, list[float]]:
    """Reads a second, of each way, in turns."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(-1, repeats):
        for name, (read, times) in ways.items():
            began = time.perf_counter()
            for _ in range(times):
                read(keys)
            if repeat >= 0:  # the one before is to warm up
                rates[name].append(times * len(keys) / (time.perf_counter() - began))
    return rates


def tell(measured: Mapping[str, list[float]]) -> None:
    of_dict = statistics.median(measured["dict"])
    of_mirror = statistics.median(measured["mirror.get"])
    for name, rates in measured.items():
        rate = statistics.median(rates)
        line: dict[str, Any] = {"benchmark": "mirror", "way": name, "reads_per_second": round(rate)}
        line |= {"spread": [round(min(rates)), round(max(rates))], "microseconds": round(1e6 / rate, 2)}
        line |= {"of_dict": round(rate / of_dict, 4), "of_mirror": round(rate / of_mirror, 4)}
        print(json.dumps(line))
    print(json.dumps({"benchmark": "mirror", "load": [round(load, 1) for load in os.getloadavg()]}))


if __name__ == "__main__":
    main()
