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
from tests.support.waiting import LONG_SECONDS

KEYS, ROW_BYTES, CHUNK_ROWS = 12_000, 10_000, 50
EPOCH_BYTES = KEYS * ROW_BYTES
# Of so many keys a row comes twice: the second one long after the first has gone to disk.
AGAIN = 800
STAGED_BYTES = 16 << 20
# Beside them, while rows are staged: the chunk that comes in, the key group that is looked through for keys that came
# twice, what malloc keeps between rows of several sizes; and what gRPC has read ahead, as much as its window of 16 MiB
# where the machine is busy.
BESIDE_BYTES = (24 << 20) + (16 << 20)
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
    """Every key once, and then the first ones again; in the first epoch one chunk of each."""
    keys, again = (KEYS, AGAIN) if epoch > 1 else (CHUNK_ROWS, CHUNK_ROWS)
    for n, stop in ((0, keys), (1, again)):
        for start in range(0, stop, CHUNK_ROWS):
            blobs = [bytes([n, epoch]) + os.urandom(ROW_BYTES - 2) for _ in range(CHUNK_ROWS)]
            batch = {
                "k": pa.array(range(start, start + CHUNK_ROWS), pa.int64()),
                "n": pa.array([epoch * 10 + n] * CHUNK_ROWS, pa.int32()),
                "blob": pa.array(blobs, pa.binary()),
            }
            yield encode(pa.record_batch(batch), of)


class Growth:
    """How much more memory the server takes at most within the last epoch than before it, in bytes, until all is staged
    and in the whole of it: an observer of its driver."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._epoch = ExitStack()
        self.staging = self.whole = 0

    def reached(self, step: Step, epoch: int) -> None:
        if step is Step.DRIVER_BEFORE_STAGE:
            self._memory = self._epoch.enter_context(PeakMemory(self._pid))
        elif step is Step.DRIVER_STAGED:
            self.staging = self._memory.grown()
        elif step is Step.DRIVER_COMPLETE:
            self.whole = self._memory.grown()
            self._epoch.close()


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


def test_an_epoch_of_120_mb_goes_through_a_server_that_holds_16_in_memory(
    kafka: str, server: tuple[Child, str], application: str, tmp_path: Path
) -> None:
    child, address = server
    of = descriptor(application)
    config = JobConfig(application, (address,), kafka, epoch_deadline_seconds=10 * LONG_SECONDS)
    growth = Growth(child.pid)
    with Feed(config, of, lambda epoch: rows(of, epoch), observer=growth) as feed:
        # The first one makes what any epoch needs, and leaves malloc no rows' memory to keep. The second one alone is
        # large: a third one would have what the second one has left, and take no more however much it holds.
        for _ in range(2):
            assert feed.epoch().rounds == 1
        with Client(address, timeout=LONG_SECONDS) as client:
            for key, n in ((0, 1), (AGAIN - 1, 1), (AGAIN, 0), (KEYS - 1, 0)):
                value = client.get(application, of.state, key).value
                assert (value.n, value.blob[:2], len(value.blob)) == (20 + n, bytes([n, 2]), ROW_BYTES)
            (status,) = client.status()
    assert [holding.entries for holding in status.holdings] == [KEYS]
    most = STAGED_BYTES + BESIDE_BYTES
    assert most < EPOCH_BYTES // 2, "else it would say nothing"
    assert growth.staging < most, f"{growth.staging >> 20} MiB while {EPOCH_BYTES >> 20} MiB were staged"
    assert growth.whole < most + COMMIT_BYTES, f"{growth.whole >> 20} MiB for an epoch of {EPOCH_BYTES >> 20} MiB"
