"""The constants that `keyhole size` counts with, measured on this machine; `keyhole size --constants` takes what it
prints.

    uv run python -m benchmarks.sizing [--rows 50000] [--epochs 10] [--seconds 5] > mine.json

Processor time is that of each process, so other work on the machine changes it less than it changes rates. What an
epoch costs by its partitions and what by its rows is told apart by epochs of two sizes; what a byte of a key and a
value takes, by rows of two sizes. Needs redis-server on PATH.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import redis

from benchmarks.cluster import Cluster, cluster
from benchmarks.loading import APPLICATION, Loader, descriptor, rows
from benchmarks.lookups import STATES
from benchmarks.processes import SPARK, Processes
from benchmarks.redis_server import redis_server
from benchmarks.stores import apply_seconds, key
from keyhole.encoding.columnar import encode
from keyhole.errors import MachineError
from keyhole.stores.base import StoreLimits
from keyhole.stores.engines import make_engine
from keyhole.v1 import query_pb2, state_pb2
from tests.support.peak_memory import own_bytes

KEY_GROUPS = 8
FEW_ROWS = 1_000
# A value as `descriptor` has it, with its envelope, and one much larger.
SMALL, LARGE = 20, 400
STORED = 200_000
# Keys of one frame to a server, and commands of one pipeline to Redis.
FRAME = 64
READ_KEYS = 50_000
MICRO = 1e6


class Costs(NamedTuple):
    """Of one epoch, in microseconds of processor time of one kind of process: by its rows, and by its partitions."""

    row: float
    partition: float


def main() -> None:
    """Prints one JSON object: the constants by their names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000, help="of a large epoch")
    parser.add_argument("--epochs", type=int, default=10, help="of each size")
    parser.add_argument("--seconds", type=float, default=5.0, help="of lookups")
    options = parser.parse_args()
    constants: dict[str, float] = {}
    try:
        for engine in ("lmdb", "rocksdb"):
            constants |= stored_bytes(engine)
        constants |= of_redis(options.rows)
        with cluster() as running:
            alone = epochs(running, options.rows, options.epochs, standbys=0)
            constants |= changelog_bytes(running)
            constants |= reads(running, options.seconds)
        with cluster(2) as running:
            followed = epochs(running, options.rows, options.epochs, standbys=1)
    except MachineError as error:
        sys.exit(error.message)
    owner, kafka = alone["server"], alone["kafka"]
    constants |= {
        "writer_us_per_row": alone[SPARK].row,
        "owner_us_per_row": owner.row,
        "owner_us_per_partition": owner.partition,
        "standby_us_per_row": max(0.0, followed["server"].row - owner.row),
        "standby_us_per_partition": max(0.0, followed["server"].partition - owner.partition),
        "kafka_us_per_row": kafka.row,
        "kafka_us_per_partition": kafka.partition,
        "kafka_us_per_row_followed": max(0.0, followed["kafka"].row - kafka.row),
        "frame_bytes_per_read": frame_bytes(),
    }
    print(json.dumps({name: float(f"{value:.3g}") for name, value in constants.items()}, indent=2))


def stored_bytes(engine_name: str) -> dict[str, float]:
    """What a key takes on disk beside its bytes, and how many bytes each of those takes: new keys in random order, of
    which a fifth is then written again.
    """

    def taken(value_bytes: int) -> float:
        with tempfile.TemporaryDirectory(prefix="keyhole-benchmark-") as directory:
            engine = make_engine(engine_name, StoreLimits(Path(directory) / "stores"), {})
            store = engine.open("benchmark", "state", "topic")
            numbers = random.Random(1).sample(range(STORED), STORED)
            written = [*numbers, *numbers[: STORED // 5]]
            for epoch, start in enumerate(range(0, len(written), 10_000), 1):
                apply_seconds(store, epoch, written[start : start + 10_000], partial(random.randbytes, value_bytes))
            engine.close()
            return disk_bytes(Path(directory)) / STORED

    return linear(f"{engine_name}_bytes_per_key", f"{engine_name}_bytes_per_byte", len(key(0)), taken)


def linear(each: str, per_byte: str, key_bytes: int, taken: Callable[[int], float]) -> dict[str, float]:
    """What is taken of rows of two sizes, as a part of each row and one of each of its bytes."""
    small, large = taken(SMALL), taken(LARGE)
    slope = (large - small) / (LARGE - SMALL)
    return {each: max(0.0, small - slope * (key_bytes + SMALL)), per_byte: slope}


def disk_bytes(directory: Path, named: str = "*") -> int:
    """That files really take; a store's map is sparse."""
    return sum(file.stat().st_blocks * 512 for file in directory.rglob(named) if file.is_file())


def of_redis(count: int) -> dict[str, float]:
    """Memory of a key; processor time of Redis for a SET and a GET in pipelines, and of who writes."""
    names = [f"sensor-{number:08d}" for number in range(count)]
    memory: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="keyhole-benchmark-") as directory,
        redis_server(Path(directory) / "redis") as (port, pid),
        redis.Redis(port=port) as connection,
    ):
        processes = Processes({"redis": pid})

        def taken(value_bytes: int) -> float:
            connection.flushall()
            empty = redis_bytes(connection)
            sent(connection, "SET", names, b"v" * value_bytes)
            return (redis_bytes(connection) - empty) / count

        def costs(command: str, *value: bytes) -> dict[str, float]:
            before = processes.usage()
            for _ in range(4):
                sent(connection, command, names, *value)
            return {of: seconds * MICRO / 4 / count for of, seconds in processes.usage().since(before).items()}

        memory = linear("redis_bytes_per_key", "redis_bytes_per_byte", len(names[0]), taken)
        written, read = costs("SET", b"v" * SMALL), costs("GET")
    return memory | {
        "redis_us_per_row": written["redis"],
        "redis_writer_us_per_row": written[SPARK],
        "redis_us_per_read": read["redis"],
    }


def redis_bytes(connection: redis.Redis) -> int:
    """All that Redis holds, with the tables that it finds keys by; without commands that wait for the log's disk."""
    memory = connection.info("memory")
    return int(memory["used_memory"]) - int(memory["mem_aof_buffer"])


def sent(connection: redis.Redis, command: str, names: list[str], *value: bytes) -> None:
    """The command for each name, in pipelines."""
    for start in range(0, len(names), FRAME):
        pipeline = connection.pipeline(transaction=False)
        for name in names[start : start + FRAME]:
            pipeline.execute_command(command, name, *value)
        pipeline.execute()


def epochs(running: Cluster, large: int, count: int, *, standbys: int) -> dict[str, Costs]:
    """By kind of process, of all servers together."""
    state = descriptor(STATES["keyhole"], KEY_GROUPS)
    processes = Processes(running.pids)

    def per_epoch(loader: Loader, size: int) -> dict[str, float]:
        sensors = [f"sensor-{number}" for number in range(size)]
        for _ in range(3):
            loader.epoch(rows(state, sensors, 1))
        before = processes.usage()
        for _ in range(count):
            loader.epoch(rows(state, sensors, 1))
        return by_kind({name: taken / count for name, taken in processes.usage().since(before).items()})

    with Loader(running.bootstrap_servers, running.servers, state, standbys) as loader:
        many, few = per_epoch(loader, large), per_epoch(loader, FEW_ROWS)
    costs = {}
    for kind, taken in many.items():
        row = (taken - few[kind]) / (large - FEW_ROWS)
        costs[kind] = Costs(row * MICRO, max(0.0, few[kind] - row * FEW_ROWS) / KEY_GROUPS * MICRO)
    return costs


def by_kind(seconds: Mapping[str, float]) -> dict[str, float]:
    """All servers are one kind."""
    kinds: dict[str, float] = {}
    for name, taken in seconds.items():
        kind = "server" if name.startswith("server-") else name
        kinds[kind] = kinds.get(kind, 0.0) + taken
    return kinds


def changelog_bytes(running: Cluster) -> dict[str, float]:
    """What Kafka's log takes for a byte of a row, its own part included. The values are random, as compression finds
    little in most.
    """
    state, count = descriptor("logged", KEY_GROUPS), 100_000
    draw = np.random.default_rng(1)
    columns = {
        "sensor": pa.array([f"sensor-{number:08d}" for number in draw.permutation(count)]),
        "temperature": pa.array(draw.random(count)),
        "readings": pa.array(draw.integers(1 << 62, size=count)),
    }
    batch = encode(pa.RecordBatch.from_pydict(columns), state)
    with Loader(running.bootstrap_servers, running.servers, state) as loader:
        loader.epoch(batch)
    logs = sum(
        file.stat().st_size
        for file in (running.directory / "kafka").rglob("*.log")
        if file.parent.name.startswith(state.topic)
    )
    row_bytes = sum(len(value) for column in batch.columns[:2] for value in column.to_pylist())
    return {"changelog_bytes_per_byte": logs / row_bytes}


def reads(running: Cluster, seconds: float) -> dict[str, float]:
    """Processor time of a lookup that is one of 64 under way, through the proxy, at the proxy and at the server."""
    processes = Processes(running.pids)
    command = [sys.executable, "-m", "benchmarks.lookups", "--client", running.proxy, "--keys", str(READ_KEYS)]
    command += ["--outstanding", str(FRAME), "--seconds", str(seconds)]
    before = processes.usage()
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    taken = by_kind(processes.usage().since(before))
    # The client's warm-up is as long as it says, and counts: its lookups were answered, too.
    answered = result["lookups_per_second"] * (seconds + 2.0)
    return {
        "server_us_per_read": taken["server"] * MICRO / answered,
        "proxy_us_per_read": taken["proxy"] * MICRO / answered,
        "server_mib": own_bytes(running.pids["server-0"]) / 2**20,
        "proxy_mib": own_bytes(running.pids["proxy"]) / 2**20,
    }


def frame_bytes() -> float:
    """What a read sends both ways beside its key and its value, where 64 share a frame."""
    request = query_pb2.LookupRequest(
        frame=1 << 20,
        state=query_pb2.StateRef(application=APPLICATION, state="sensors"),
        storage_keys=[key(0)] * FRAME,
        topic_id="0" * 22,
        timeout_ms=5000,
    )
    source = state_pb2.Source(
        server="server-0", role=state_pb2.ROLE_OWNER, epoch=1 << 20, commit_time_ms=1 << 41, generation=9,
        assignment_version=9, as_of_ms=1 << 41,
    )  # fmt: skip
    response = query_pb2.LookupResponse(frame=1 << 20, values=[b"v" * SMALL] * FRAME, sources=[source])
    # gRPC's 5 bytes and HTTP/2's 9 of each message, and TCP's and IP's headers of a packet.
    return (request.ByteSize() + response.ByteSize() + 2 * (5 + 9 + 40)) / FRAME - len(key(0)) - SMALL


if __name__ == "__main__":
    main()
