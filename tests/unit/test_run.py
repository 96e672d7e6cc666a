"""What a run of a query remembers of a recovery that broke off: the real driver and servers, without sockets."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping

import pytest

from keyhole.config import JobConfig
from keyhole.coordinator.run import QueryRun
from keyhole.errors import EpochFailed, KafkaUnreachable
from keyhole.protocol.membership import Sighting
from keyhole.testing.changelog import MemoryChangelog, MemoryControlLog
from tests.support.simulation import SimulatedFleet, World
from tests.support.states import KEY_GROUPS, descriptor, key, names_in, row


@pytest.fixture
def world() -> Iterator[World]:
    world = World(descriptor())
    yield world
    world.close()


def rows(n: float) -> dict[bytes, bytes | None]:
    return {key(name): row(n) for group in range(KEY_GROUPS) for name in names_in(group)}


def test_a_server_that_was_fenced_gets_a_new_grant_though_the_fence_could_not_be_recorded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network breaks for a moment: a server is not seen, it is fenced, and then Kafka is not seen either."""
    world.run_epoch(0, rows(1.0))
    observe, append = SimulatedFleet.observe, MemoryControlLog.append
    unseen, unwritten = iter([True]), iter([True])

    def without_b(fleet: SimulatedFleet) -> dict[str, Sighting]:
        live = observe(fleet)
        if next(unseen, False):
            del live["b"]
        return live

    def not_once(log: MemoryControlLog, records: Mapping[str, bytes | None], deadline_seconds: float) -> None:
        if next(unwritten, False):
            raise KafkaUnreachable("away for a moment")
        append(log, records, deadline_seconds)

    monkeypatch.setattr(SimulatedFleet, "observe", without_b)
    monkeypatch.setattr(MemoryControlLog, "append", not_once)
    assert world.run_epoch(1, rows(2.0)).epoch == 2
    assert next(unseen, None) is next(unwritten, None) is None


@pytest.mark.parametrize("away_seconds", [0.1, 3.0, 1000.0], ids=["a moment", "a while", "too long"])
def test_an_epoch_that_all_servers_have_committed_is_recorded_once_kafka_is_back(
    world: World, monkeypatch: pytest.MonkeyPatch, away_seconds: float
) -> None:
    world.run_epoch(0, rows(1.0))
    append, since = MemoryControlLog.append, list[float]()

    def while_it_is_away(log: MemoryControlLog, records: Mapping[str, bytes | None], deadline_seconds: float) -> None:
        if any(name.startswith("complete/") for name in records):
            since.append(world.clock.monotonic())
            if since[-1] < since[0] + away_seconds:
                world.clock.sleep(1.0)
                raise KafkaUnreachable("away")
        append(log, records, deadline_seconds)

    monkeypatch.setattr(MemoryControlLog, "append", while_it_is_away)
    if away_seconds < 5.0:  # the deadline of these epochs
        assert world.run_epoch(1, rows(2.0)).epoch == 2
        assert len(since) == 1 + math.ceil(away_seconds / 1.5)
        return
    with pytest.raises(EpochFailed, match="all servers have committed epoch 2"):
        world.run_epoch(1, rows(2.0))
    monkeypatch.setattr(MemoryControlLog, "append", append)
    again = world.run_epoch(1, rows(2.0))
    assert (again.epoch, again.replayed) == (2, True)


@pytest.mark.parametrize(
    ("answering", "said"),
    [
        ((), "no state server answers at a:1, b:1"),
        (("b",), "1 of 2 answers (b), of those at a:1, b:1"),
    ],
)
def test_who_waits_for_servers_is_told_every_five_seconds_which_addresses_nobody_answers_at(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answering: tuple[str, ...],
    said: str,
) -> None:
    """By warnings, in whose text all of it is: a job that has set up no logging shows nothing else."""
    observe = SimulatedFleet.observe
    monkeypatch.setattr(
        SimulatedFleet, "observe", lambda fleet: {name: of for name, of in observe(fleet).items() if name in answering}
    )
    config = JobConfig("app", ("a:1", "b:1"), "memory", server_wait_seconds=100.0)
    changelog, control = MemoryChangelog(world.kafka, "app"), MemoryControlLog(world.kafka, "app", "main")
    run = QueryRun(config, "main", changelog, control, SimulatedFleet(world), world.clock)
    with pytest.raises(EpochFailed):
        run.converge(world.clock.monotonic() + 21.0)
    logged = [record for record in caplog.records if record.name == "keyhole.coordinator.waiting"]
    assert [record.levelno for record in logged] == [logging.WARNING] * 4
    assert [record.getMessage() for record in logged] == [
        f"waiting for the state servers: {said}; the query ends in {left} s if that stays so" for left in (16, 11, 6, 1)
    ]
