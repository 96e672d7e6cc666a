"""Gets and rows per second of one store: `python -m benchmarks.stores --engine lmdb --entries 100000`. Prints JSON.

The gets are measured alone, and beside a thread that computes in Python all the time, at several switch intervals: a
store that releases the GIL within a frame waits for that thread each time it loses it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from keyhole.model.epoch import START, Position
from keyhole.stores.base import Advance, Batch, Snapshot, Store, StoreEngine, StoreLimits
from keyhole.stores.engines import make_engine

KEY_GROUPS = 64
ROW = b"v" * 40
ROWS_PER_BATCH = 10_000
FRAME_KEYS = (1, 16, 128, 256)
SWITCH_INTERVALS_SECONDS = (0.005, 0.0005, 0.0001)


def key(number: int) -> bytes:
    return (number % KEY_GROUPS).to_bytes(2, "big") + b"sensor-%08d\0\0" % number


def position(epoch: int) -> Position:
    return Position(epoch, epoch, 1, 1, epoch, 0) if epoch else START


def apply_seconds(store: Store, epoch: int, numbers: Sequence[int], value: Callable[[], bytes] = lambda: ROW) -> float:
    """Seconds that the store takes for an epoch of these keys. `value`: makes the value of each row."""
    puts = [(storage_key, value()) for storage_key in sorted(map(key, numbers))]
    advance = Advance(position(epoch - 1), position(epoch))
    batch = Batch(puts, [], dict.fromkeys(range(KEY_GROUPS), advance))
    start = time.perf_counter()
    store.apply(batch)
    return time.perf_counter() - start


def gets_per_second(snapshot: Snapshot, frames: Sequence[Sequence[bytes]], at_most_seconds: float) -> dict[str, int]:
    times = []
    start = time.perf_counter()
    for frame in frames:
        before = time.perf_counter()
        snapshot.get_many(frame)
        times.append(time.perf_counter() - before)
        if before - start > at_most_seconds:
            break
    times.sort()
    return {
        "gets_per_second": round(len(times) * len(frames[0]) / sum(times)),
        "frame_p50_us": round(times[len(times) // 2] * 1e6),
        "frame_p99_us": round(times[int(len(times) * 0.99)] * 1e6),
    }


@contextmanager
def busy_thread(switch_interval_seconds: float) -> Iterator[None]:
    """A thread that computes until the end, at that switch interval."""
    ended = threading.Event()

    def compute() -> None:
        total = 0
        while not ended.is_set():
            for number in range(1000):
                total += number * number

    before = sys.getswitchinterval()
    sys.setswitchinterval(switch_interval_seconds)
    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(before)


def measure(engine: StoreEngine, entries: int, batches: int) -> dict[str, object]:
    dice = random.Random(1)
    store = engine.open("benchmark", "state", "topic")
    load_seconds = apply_seconds(store, 1, range(entries))
    rates = [
        ROWS_PER_BATCH / apply_seconds(store, epoch, dice.sample(range(entries), ROWS_PER_BATCH))
        for epoch in range(2, 2 + batches)
    ]
    snapshot = store.snapshot()
    alone, busy = {}, {}
    for size in FRAME_KEYS:
        frames = [[key(dice.randrange(entries)) for _ in range(size)] for _ in range(400_000 // size)]
        alone[size] = gets_per_second(snapshot, frames, at_most_seconds=2)
        if size == 128:
            for interval in SWITCH_INTERVALS_SECONDS:
                with busy_thread(interval):
                    busy[interval] = gets_per_second(snapshot, frames, at_most_seconds=1)
    snapshot.close()
    return {
        "entries": entries,
        "load_rows_per_second": round(entries / load_seconds),
        "apply_rows_per_second": {
            "median": round(statistics.median(rates)),
            "min": round(min(rates)),
            "max": round(max(rates)),
        },
        "get_many_by_keys_per_frame": alone,
        "get_many_128_beside_a_busy_thread_by_switch_interval_seconds": busy,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="lmdb", help="lmdb, memory, rocksdb, or another one (docs/stores.md)")
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument(
        "--directory", type=Path, help="below which the store is made; default: the temporary directory"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        engine = make_engine(arguments.engine, StoreLimits(Path(directory) / "stores"), {})
        try:
            figures = measure(engine, arguments.entries, arguments.batches)
        finally:
            engine.close()
    print(json.dumps({"engine": arguments.engine, **figures}, indent=2))


if __name__ == "__main__":
    main()
