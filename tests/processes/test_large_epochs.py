"""Epochs larger than what a state server may hold in memory, in a real server with real Kafka."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from keyhole import Client
from keyhole.arrow import encode
from keyhole.config import JobConfig
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_state_server
from keyhole.types import KeyColumn, KeyType, StateDescriptor, ValueField, ValueSchema
from tests.support import states
from tests.support.feeding import Feed
from tests.support.peak_memory import PeakMemory

KEYS, ROW_BYTES, ROUNDS = 25_000, 10_000, 2
EPOCH_BYTES = KEYS * ROW_BYTES * ROUNDS
STAGED_BYTES = 16 << 20
CHUNK_ROWS = 500


def descriptor(application: str) -> StateDescriptor:
    """The row with the highest n of each key: all rows of a key come, in several chunks."""
    return states.descriptor(
        application=application,
        state="blobs",
        query="blobs",
        key_groups=32,
        key=(KeyColumn("k", KeyType.BIGINT),),
        value=ValueSchema(1, (ValueField("n", "int"), ValueField("blob", "binary"))),
        order_by="n",
    )


def rows(of: StateDescriptor, epoch: int) -> Iterator[pa.RecordBatch]:
    """Every key twice, far apart."""
    for n in range(ROUNDS):
        for start in range(0, KEYS, CHUNK_ROWS):
            size = min(CHUNK_ROWS, KEYS - start)
            blobs = [bytes([n, epoch]) + os.urandom(ROW_BYTES - 2) for _ in range(size)]
            batch = {
                "k": pa.array(range(start, start + size), pa.int64()),
                "n": pa.array([epoch * 10 + n] * size, pa.int32()),
                "blob": pa.array(blobs, pa.binary()),
            }
            yield encode(pa.record_batch(batch), of)


@pytest.fixture
def server(kafka: str, tmp_path: Path) -> Iterator[tuple[Child, str]]:
    (port,) = free_ports(1)
    limit = {"KEYHOLE_STATE_SERVER_MAX_STAGED_BYTES": str(STAGED_BYTES)}
    child = start_state_server(
        "server-0", port, bootstrap_servers=kafka, directory=tmp_path, environ={**os.environ, **limit}
    )
    yield child, f"127.0.0.1:{port}"
    child.kill()


def test_an_epoch_of_500_mb_goes_through_a_server_that_holds_16_in_memory(
    kafka: str, server: tuple[Child, str], application: str, tmp_path: Path
) -> None:
    child, address = server
    of = descriptor(application)
    config = JobConfig(application, (address,), kafka, epoch_deadline_seconds=240)
    with Feed(config, of, lambda epoch: rows(of, epoch)) as feed:
        with PeakMemory(child.pid) as memory:
            for _ in range(2):
                assert feed.epoch().rounds == 1
        with Client(address) as client:
            for key in (0, KEYS // 2, KEYS - 1):
                value = client.get(application, of.state, key).value
                assert (value.n, value.blob[:2], len(value.blob)) == (21, b"\1\2", ROW_BYTES)
            (status,) = client.status()
    assert [holding.entries for holding in status.holdings] == [KEYS]
    grown = memory.bytes - memory.before
    assert grown < EPOCH_BYTES // 2, f"{grown >> 20} MiB for an epoch of {EPOCH_BYTES >> 20} MiB"
