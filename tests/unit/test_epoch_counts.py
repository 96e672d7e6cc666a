"""What the coordinator and the servers count of epochs, also where servers are lost and batches are run again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from keyhole.config import JobConfig
from keyhole.coordinator.coordinator import Coordinator
from keyhole.coordinator.counts import QueryCounts
from keyhole.coordinator.fleet import Fleet
from keyhole.coordinator.recent_epochs import RECENT_EPOCHS, RecentEpochs
from keyhole.errors import EpochFailed, Fenced
from keyhole.metrics.labels import PHASES
from keyhole.model.epoch_times import EpochTimes
from keyhole.protocol.epochs import EpochBatch, StatePlan
from keyhole.rpc.convert_epochs import epoch_times_from_proto, epoch_times_to_proto
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.clock import ManualClock
from keyhole.v1 import state_pb2
from services.state_server.epoch_history import KEPT_EPOCHS, EpochHistory
from tests.support.simulation import Fault, World
from tests.support.states import KEY_GROUPS, descriptor, key, names_in, row

KEYS = [key(names_in(group)[0]) for group in range(KEY_GROUPS)]


@pytest.fixture
def world() -> Iterator[World]:
    made = World(descriptor())
    yield made
    made.close()


def rows(n: float) -> dict[bytes, bytes | None]:
    return {name: row(n) for name in KEYS}


def counts(world: World) -> QueryCounts:
    assert world.coordinator is not None
    return world.coordinator._counts


def test_every_epoch_and_every_phase_of_it_is_counted(world: World) -> None:
    world.run_epoch(0, rows(1.0))
    world.run_epoch(1, rows(2.0))
    found = counts(world)
    assert (found.epochs, found.rounds, found.replayed, found.complete.epoch) == (2, 2, 0, 2)
    assert (found.generation, found.members) == (1, 2)
    assert sum(found.seconds.counts) == 2
    assert set(found.phase_seconds) == set(PHASES)
    assert [(of.epoch, of.batch, of.began_ms) for of in found.recent.last] == [
        (1, 0, world.clock.now_ms()),
        (2, 1, world.clock.now_ms()),
    ]
    assert found.complete.commit_time_ms == world.clock.now_ms()


def test_a_lost_server_costs_a_round_and_is_counted(world: World) -> None:
    world.run_epoch(0, rows(1.0))
    version = counts(world).assignment_version
    world.faults_at["a", "Commit"] = Fault.SERVER_IS_CUT_OFF
    world.run_epoch(1, rows(2.0))
    found = counts(world)
    assert (found.epochs, found.rounds, found.members) == (2, 3, 1)
    assert found.distrusted >= 1
    assert found.assignment_version > version


def test_a_batch_that_is_run_again_is_a_replay_here_and_on_the_servers(world: World) -> None:
    world.run_epoch(0, rows(1.0))
    world.driver_dies()
    world.run_epoch(0, rows(1.0))
    found = counts(world)
    assert (found.epochs, found.replayed, found.generation) == (1, 1, 2)
    epochs = [host.epochs for server in world.servers.values() for host in server._registry.hosts.values()]
    assert [(one.committed, one.replayed, one.committed_epoch) for one in epochs] == [(2, 1, 1)] * 2


def histories_of(world: World) -> list[list[tuple[int, int, int, bool, int]]]:
    """By server: generation, epoch, batch, whether it was a replay, and rounds."""
    histories = [host.history.last for server in world.servers.values() for host in server._registry.hosts.values()]
    return [[(of.generation, of.epoch, of.batch, of.replayed, of.rounds) for of in last] for last in histories]


def test_each_server_is_told_what_the_last_epochs_took_and_keeps_it_beyond_the_run(world: World) -> None:
    world.run_epoch(0, rows(1.0))
    world.faults_at["a", "Commit"] = Fault.ANSWER_IS_LOST
    world.run_epoch(1, rows(2.0))
    counts(world).recent.note_batch(1, 7.5)
    world.beat()
    first, second = (1, 1, 0, False, 1), (1, 2, 1, True, 2)
    assert histories_of(world) == [[first, second]] * 2
    world.driver_dies()
    world.run_epoch(1, rows(2.0))
    world.beat()
    assert histories_of(world) == [[first, second, (2, 2, 1, True, 1)]] * 2
    history = next(iter(world.servers["a"]._registry.hosts.values())).history
    assert [of.batch_micros for of in history.last] == [0, 7_500_000, 0]


def test_of_the_last_epochs_the_newest_batch_of_an_id_is_meant_and_old_ones_are_let_go() -> None:
    recent = RecentEpochs()
    for number in range(2 * RECENT_EPOCHS):
        recent.note(EpochTimes(number, 1, number % RECENT_EPOCHS, 0, 1.0, 0.1, 0.2, 0.3, 0.4, 1, number == 20))
    recent.note_batch(3, 2.5)
    recent.note_batch(RECENT_EPOCHS, 9.0)  # it is not kept
    last = recent.last
    assert [of.epoch for of in last] == list(range(RECENT_EPOCHS, 2 * RECENT_EPOCHS))
    assert [(of.epoch, of.batch_seconds) for of in last if of.batch_seconds] == [(RECENT_EPOCHS + 3, 2.5)]
    assert [epoch_times_from_proto(epoch_times_to_proto(of)) for of in last] == list(last)

    history = EpochHistory()
    for number in range(KEPT_EPOCHS + 5):
        history.note([state_pb2.EpochTimes(epoch=number + 1, generation=1 + number // 100)])
    assert [of.epoch for of in history.last] == list(range(6, KEPT_EPOCHS + 6))


def test_a_run_that_was_replaced_says_so(world: World) -> None:
    world.run_epoch(0, rows(1.0))
    old = counts(world)
    world.suspend_driver()
    world.run_epoch(1, rows(2.0))
    world.old_drivers_wake(Fenced)
    assert (old.fenced, counts(world).fenced) == (True, False)
    assert (dict(old.failed), dict(counts(world).failed)) == ({"FENCED": 1}, {})


def test_a_run_that_is_replaced_between_two_epochs_counts_one_that_it_gives_up_however_often_it_tries(
    world: World,
) -> None:
    world.run_epoch(0, rows(1.0))
    assert world.coordinator is not None
    old, found = world.coordinator, counts(world)
    old._run.be_fenced(Fenced("the heartbeat was refused"))
    batch = EpochBatch("spark", 1, 0, 0, (StatePlan(descriptor()),), 1, lambda _: ())
    for _ in range(2):
        with pytest.raises(Fenced, match="the heartbeat was refused"):
            old.run_epoch(batch)
    assert dict(found.failed) == {"FENCED": 1}


def test_an_epoch_that_is_given_up_is_counted_by_its_reason() -> None:
    config = JobConfig("app", ("127.0.0.1:1",), "memory", epoch_deadline_seconds=0.0, server_wait_seconds=0.0)
    changelog, found = MemoryChangelog(MemoryKafka(), "app"), QueryCounts()
    coordinator = Coordinator(config, "main", changelog, ManualClock(), fleet=Fleet(lambda: ()), counts=found)
    batch = EpochBatch("spark", 0, 0, 0, (StatePlan(descriptor()),), 1, lambda _: ())
    with contextlib.closing(coordinator), pytest.raises(EpochFailed):
        coordinator.run_epoch(batch)
    assert dict(found.failed) == {"EPOCH_FAILED": 1}
    assert (found.epochs, found.generation) == (0, 0)
