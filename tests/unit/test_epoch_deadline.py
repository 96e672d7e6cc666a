"""When an epoch is given up, and what is said then."""

from __future__ import annotations

import contextlib

import pytest

from keyhole.config import JobConfig
from keyhole.coordinator.coordinator import Coordinator
from keyhole.coordinator.fleet import Fleet
from keyhole.errors import EpochFailed
from keyhole.protocol.epochs import EpochBatch, StatePlan
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.clock import ManualClock
from tests.support.states import descriptor


def test_servers_are_tried_and_named_however_little_time_there_is() -> None:
    config = JobConfig("app", ("127.0.0.1:1",), "memory", epoch_deadline_seconds=0.0, server_wait_seconds=0.0)
    changelog = MemoryChangelog(MemoryKafka(), "app")
    coordinator = Coordinator(config, "main", changelog, ManualClock(), fleet=Fleet(lambda: config.servers))
    batch = EpochBatch("spark", 0, 0, 0, (StatePlan(descriptor()),), 1, lambda _: ())
    with (
        contextlib.closing(coordinator),
        pytest.raises(EpochFailed, match=r"no state server answers at 127\.0\.0\.1:1"),
    ):
        coordinator.run_epoch(batch)
