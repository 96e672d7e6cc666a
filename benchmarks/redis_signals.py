"""The golden signals put in Redis: what one would write in foreachBatch without Keyhole, with the same aggregation.

A key is a hash: the accumulator, the result that readers get, and the number of the batch that wrote it last. A task
has all of its keys' rows to itself, since they are shuffled by key; it reads the accumulators in one pipeline, merges,
and writes them back in another, by a script that compares the batch number with what was read.

What that gives: a batch, or a task, that is run again counts once in every key. What it doesn't: readers may see some
keys of a batch and others not yet; a Redis that crashes loses up to a second that Spark takes for written, and nobody
notices; batch numbers of a new checkpoint begin at 0 again, and are taken for replays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import redis
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from benchmarks.batches import PARTITIONS, ForeachBatch
from jobs.golden_signals.pipeline import KEPT_FOR, VALUE
from jobs.golden_signals.signals import Accumulator, GoldenSignals, Result

_KEYS_PER_PIPELINE = 2_000
_RECEIPT = "keys bigint"

# 1 batch that was read, 2 batch, 3 accumulator, 4 result, 5 seconds to live. The batch that is stored in the end.
_WRITE = """
if (redis.call('HGET', KEYS[1], 'batch') or '') == ARGV[1] then
    redis.call('HSET', KEYS[1], 'batch', ARGV[2], 'accumulator', ARGV[3], 'result', ARGV[4])
    redis.call('EXPIRE', KEYS[1], ARGV[5])
end
return redis.call('HGET', KEYS[1], 'batch')
"""

ServiceMinute = tuple[str, int]


class Row(NamedTuple):
    """One of VALUE's columns each."""

    duration_us: int | None
    failed: bool | None
    cpu_permille: int | None
    memory_permille: int | None


def name(prefix: str, key: ServiceMinute) -> str:
    """Of the key in Redis."""
    service, minute_ms = key
    return f"{prefix}:{service}:{minute_ms}"


def put_in_redis(port: int, prefix: str) -> ForeachBatch:
    """A function for foreachBatch."""
    return lambda batch, batch_id: _run(batch, functools.partial(_store, port, prefix, batch_id))


def aggregated_only(batch: DataFrame, batch_id: int) -> None:
    """A function for foreachBatch: the same, stored nowhere. What the aggregation itself costs."""
    _run(batch, _forget)


def get(connection: redis.Redis, prefix: str, key: ServiceMinute) -> Result | None:
    """What a reader does."""
    result: Any = connection.hget(name(prefix, key), "result")
    return None if result is None else msgspec.msgpack.decode(result, type=Result)


def _run(batch: DataFrame, store: Callable[[dict[ServiceMinute, Accumulator]], None]) -> None:
    rows = batch.select("service", f.unix_millis("minute").alias("minute_ms"), *VALUE)
    placed = rows.repartition(PARTITIONS, "service", "minute_ms")
    placed.mapInArrow(functools.partial(_task, store), _RECEIPT).collect()


def _task(
    store: Callable[[dict[ServiceMinute, Accumulator]], None], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    gathered = _gathered(batches)
    store(gathered)
    yield pa.record_batch({"keys": pa.array([len(gathered)], pa.int64())})


def _gathered(batches: Iterable[pa.RecordBatch]) -> dict[ServiceMinute, Accumulator]:
    aggregator = GoldenSignals()
    gathered: dict[ServiceMinute, Accumulator] = {}
    for batch in batches:
        keys = zip(batch.column("service").to_pylist(), batch.column("minute_ms").to_pylist(), strict=True)
        rows = map(Row._make, zip(*(batch.column(field).to_pylist() for field in VALUE), strict=True))
        for key, row in zip(keys, rows, strict=True):
            of = gathered.get(key)
            if of is None:
                of = gathered[key] = aggregator.create()
            aggregator.add(of, row)
    return gathered


def _forget(gathered: dict[ServiceMinute, Accumulator]) -> None:
    aggregator = GoldenSignals()
    for of in gathered.values():
        aggregator.encode(of)
        aggregator.result(of)


def _store(port: int, prefix: str, batch_id: int, gathered: dict[ServiceMinute, Accumulator]) -> None:
    connection, aggregator = _connection(port), GoldenSignals()
    write = connection.register_script(_WRITE)
    keys = list(gathered)
    for start in range(0, len(keys), _KEYS_PER_PIPELINE):
        some = keys[start : start + _KEYS_PER_PIPELINE]
        pipeline = connection.pipeline(transaction=False)
        for key in some:
            pipeline.hmget(name(prefix, key), "batch", "accumulator")
        stored = pipeline.execute()
        for key, (last_batch, base) in zip(some, stored, strict=True):
            if last_batch is not None and int(last_batch) >= batch_id:
                continue  # the batch is run again, and the key has it
            of = gathered[key]
            if base is not None:
                of = aggregator.merge(aggregator.decode(base), of)
            result = msgspec.msgpack.encode(aggregator.result(of))
            values = [last_batch or b"", batch_id, aggregator.encode(of), result, round(KEPT_FOR.total_seconds())]
            write(keys=[name(prefix, key)], args=values, client=pipeline)
        if any(int(written) != batch_id for written in pipeline.execute()):
            raise RuntimeError("another writer was at the same keys; run one query per prefix")


@functools.lru_cache(maxsize=4)
def _connection(port: int) -> redis.Redis:
    """One for the life of the Python worker."""
    return redis.Redis(host="127.0.0.1", port=port)
