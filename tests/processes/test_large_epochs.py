"""Epochs larger than what a state server may hold in memory, in a real server with real Kafka."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from keyhole import Client
from keyhole.config import JobConfig
from keyhole.encoding.columnar import encode
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_state_server
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, ValueField, ValueSchema
from keyhole.protocol.failpoints import Step
from tests.support import states
from tests.support.feeding import Feed
from tests.support.peak_memory import PeakMemory

KEYS, ROW_BYTES, ROUNDS = 25_000, 10_000, 2
EPOCH_BYTES = KEYS * ROW_BYTES * ROUNDS
STAGED_BYTES = 16 << 20
CHUNK_ROWS = 50
# Beside them, while rows are staged: the chunk that comes in, the key group that is looked through for keys that came
# twice, what gRPC has read ahead, and what malloc keeps between rows of several sizes.
BESIDE_BYTES = 24 << 20
# And while they are committed: the queue of Kafka's client (changelog.kafka.transactions), a portion for the store
# (services.state_server.write.commit), and the store's pages of it.
COMMIT_BYTES = (64 << 20) + 2 * (16 << 20)


def descriptor(application: str) -> StateDescriptor:
    """The row with the highest n of each key: all rows of a key come, in several chunks."""
    return states.descriptor(
        application=application,
        state="blobs",
        query="blobs",
        key_groups=128,
        key=(KeyColumn("k", KeyType.BIGINT),),
        value=ValueSchema(1, (ValueField("n", "int"), ValueField("blob", "binary"))),
        order_by="n",
    )


def rows(of: StateDescriptor, epoch: int) -> Iterator[pa.RecordBatch]:
    """Every key twice, far apart; in the first epoch as many rows as fit in memory."""
    keys = KEYS if epoch > 1 else STAGED_BYTES // ROW_BYTES // 2
    for n in range(ROUNDS):
        for start in range(0, keys, CHUNK_ROWS):
            size = min(CHUNK_ROWS, keys - start)
            blobs = [bytes([n, epoch]) + os.urandom(ROW_BYTES - 2) for _ in range(size)]
            batch = {
                "k": pa.array(range(start, start + size), pa.int64()),
                "n": pa.array([epoch * 10 + n] * size, pa.int32()),
                "blob": pa.array(blobs, pa.binary()),
            }
            yield encode(pa.record_batch(batch), of)


class Growth:
    """How much more memory the server takes within an epoch than before it, in bytes: an observer of its driver."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._epoch = ExitStack()
        self.staging: list[int] = []
        self.whole: list[int] = []

    def reached(self, step: Step, epoch: int) -> None:
        if step is Step.DRIVER_BEFORE_STAGE:
            self._memory = self._epoch.enter_context(PeakMemory(self._pid))
        elif step is Step.DRIVER_STAGED:
            self.staging.append(self._memory.bytes - self._memory.before)
        elif step is Step.DRIVER_COMPLETE:
            self._epoch.close()
            self.whole.append(self._memory.bytes - self._memory.before)


@pytest.fixture
def server(kafka: str, tmp_path: Path) -> Iterator[tuple[Child, str]]:
    """With as many of malloc's heaps as in our images, each of which keeps what was freed in it."""
    (port,) = free_ports(1)
    limits = {"KEYHOLE_STATE_SERVER_MAX_STAGED_BYTES": str(STAGED_BYTES), "MALLOC_ARENA_MAX": "2"}
    child = start_state_server(
        "server-0", port, bootstrap_servers=kafka, directory=tmp_path, environ={**os.environ, **limits}
    )
    yield child, f"127.0.0.1:{port}"
    child.kill()


def test_an_epoch_of_500_mb_goes_through_a_server_that_holds_16_in_memory(
    kafka: str, server: tuple[Child, str], application: str, tmp_path: Path
) -> None:
    child, address = server
    of = descriptor(application)
    config = JobConfig(application, (address,), kafka, epoch_deadline_seconds=240)
    growth = Growth(child.pid)
    with Feed(config, of, lambda epoch: rows(of, epoch), observer=growth) as feed:
        for _ in range(3):
            assert feed.epoch().rounds == 1
        with Client(address) as client:
            for key in (0, KEYS // 2, KEYS - 1):
                value = client.get(application, of.state, key).value
                assert (value.n, value.blob[:2], len(value.blob)) == (31, b"\1\3", ROW_BYTES)
            (status,) = client.status()
    assert [holding.entries for holding in status.holdings] == [KEYS]
    # The first one has made what any epoch needs. On a busy machine chunks wait in gRPC's buffers, 12 MiB of them seen;
    # what the server itself holds is in each of the others.
    staging, whole = min(growth.staging[1:]), min(growth.whole[1:])
    assert staging < STAGED_BYTES + BESIDE_BYTES, f"{staging >> 20} MiB while {EPOCH_BYTES >> 20} MiB were staged"
    most = STAGED_BYTES + BESIDE_BYTES + COMMIT_BYTES
    assert most < EPOCH_BYTES // ROUNDS, "else it would say nothing"
    assert whole < most, f"{whole >> 20} MiB for an epoch of {EPOCH_BYTES >> 20} MiB"
