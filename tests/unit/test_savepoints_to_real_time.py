"""A query of the batch lane goes on in the real-time lane, by a savepoint: each row of its source counts once."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from keyhole.coordinator.feed_run import FeedRun
from keyhole.errors import ChangelogRecreated, KeyholeError, SavepointMismatch
from keyhole.model.state import StateKind, ValueField, ValueSchema
from keyhole.protocol.control import read_control
from keyhole.protocol.fed_sources import source_of_branch
from keyhole.protocol.start import UPDATES
from keyhole.protocol.updates import PUT, UpdateRecord
from keyhole.savepoint.create import CreateSettings, create
from keyhole.savepoint.folder import Folder
from keyhole.savepoint.listing import load
from keyhole.savepoint.manifest import SavedQuery, SavedState, Savepoint
from keyhole.savepoint.moved_lane import QueriedTopic, source_topic_of
from keyhole.savepoint.restore_application import plan_of, restore
from keyhole.savepoint.restore_plan import RestoreOptions, plan_restore
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.clock import ManualClock
from keyhole.testing.updates import send
from tests.support.applications import FILE_ENTRY, KAFKA_ENTRY, Application, control_of
from tests.support.simulation import SimulatedFleet, World
from tests.support.states import KEY_GROUPS, descriptor, key, names_in

NAMES = [names_in(group, 1)[0] for group in range(KEY_GROUPS)]
SUM = descriptor(kind=StateKind.REDUCING, reducers=("sum",), value=ValueSchema(1, (ValueField("n", "double"),)))
# Of applications.KAFKA_ENTRY: the batches have read 12 records of partition 0, and 7 of partition 1.
SOURCE = QueriedTopic("id-of-events", {0: 0, 1: 3})
REAL_TIME = RestoreOptions(real_time={"main": SOURCE})


def saved(directory: Path, application: Application) -> Folder:
    folder = Folder(str(directory / "savepoint"))
    settings = CreateSettings(kafka_deadline_seconds=1)
    create("app", application.changelog, folder, {}, ManualClock(), settings)
    return folder


@pytest.fixture
def savepoint(tmp_path: Path) -> Folder:
    application = Application(of=SUM)
    application.run(3, dict.fromkeys(NAMES, 1.0))
    application.run(4, {NAMES[0]: 100.0})
    return saved(tmp_path, application)


def restored(savepoint: Folder, kafka: MemoryKafka, options: RestoreOptions = REAL_TIME) -> None:
    _, plan = plan_of(savepoint, options)
    restore(savepoint, plan, MemoryChangelog(kafka, plan.application), ManualClock(), 1)


@pytest.fixture
def world() -> Iterator[World]:
    made = World(msgspec.structs.replace(SUM, topic_id=""))
    yield made
    made.close()


def begun(world: World, source: str) -> FeedRun:
    fleet = SimulatedFleet(world)
    changelog = MemoryChangelog(world.kafka, "app")
    run = FeedRun(world.config, SUM.query, changelog, world.clock, fleet=fleet, heartbeat_seconds=1e6)
    run.start({world.descriptor: 0}, sources={source: "events"})
    return run


def update(world: World, source: str, offset: int, amount: float, partition: int = 0) -> None:
    record = UpdateRecord(source, partition, offset, 0, PUT, 1, [NAMES[0]], None, [amount])
    send(world.kafka, "app", SUM.state, 0, record)


def owners_say(world: World) -> dict[str, float]:
    """By key, once all that was sent is applied and committed."""
    found = {}
    for server in world.servers.values():
        server.apply_updates(commit=True)
        for table in server.tables.values() if server.servicer is not None else ():
            for name in NAMES:
                with contextlib.suppress(KeyholeError):
                    row = table.lookup([key(name)]).rows[0]
                    found[name] = 0.0 if row is None else table.codec.decode_row(row)["n"]
    return found


@pytest.mark.parametrize("source", ["id-of-events", source_of_branch("id-of-events", "main")], ids=["feed", "query"])
def test_rows_that_the_savepoint_has_count_once_and_those_behind_them_too(
    savepoint: Folder, world: World, source: str
) -> None:
    restored(savepoint, world.kafka)
    run = begun(world, source)
    before = {name: 100.0 if name == NAMES[0] else 1.0 for name in NAMES}
    assert owners_say(world) == before
    # The topic is read from its start: the savepoint has the first two of these.
    update(world, source, 11, 1000.0)
    update(world, source, 6, 1000.0, partition=1)
    update(world, source, 12, 7.0)
    update(world, source, 7, 8.0, partition=1)
    after = before | {NAMES[0]: 115.0}
    assert owners_say(world) == after
    control = read_control(control_of(world.kafka, "app"), "main")
    assert control.query is not None
    assert (control.query.spark_query_id, control.savepoint) == (UPDATES, None)
    assert control.states[SUM.state].updates_topic_id

    # And so it is for owners that begin anew, of a run that begins anew.
    run.close()
    for server in world.servers.values():
        server.die(lose_store=True)
        server.start()
    run = begun(world, source)
    update(world, source, 11, 1000.0)
    update(world, source, 12, 7.0)
    assert owners_say(world) == after
    run.close()


def test_key_groups_that_changed_nothing_since_go_on_from_the_savepoint_too(savepoint: Folder, world: World) -> None:
    restored(savepoint, world.kafka)
    begun(world, "id-of-events").close()
    # Killed before anything was committed: the marker of the restore is the last one.
    for server in world.servers.values():
        server.die(lose_store=True)
        server.start()
    run = begun(world, "id-of-events")
    update(world, "id-of-events", 11, 1000.0)
    assert owners_say(world)[NAMES[0]] == 100.0
    run.close()


def test_a_job_by_micro_batches_can_not_go_on_with_it(savepoint: Folder, world: World) -> None:
    restored(savepoint, world.kafka)
    with pytest.raises(SavepointMismatch, match="to go on in real time"):
        world.run_epoch(5, {})


def test_what_was_restored_for_epochs_is_refused_by_the_way_to_do_it(
    savepoint: Folder, world: World, tmp_path: Path
) -> None:
    restored(savepoint, world.kafka, RestoreOptions(checkpoints={"main": str(tmp_path / "checkpoint")}))
    with pytest.raises(SavepointMismatch, match="--real-time main"):
        begun(world, "id-of-events")


def test_the_topic_is_the_one_that_the_offsets_name(savepoint: Folder) -> None:
    assert source_topic_of(load(savepoint), "main") == "events"
    with pytest.raises(SavepointMismatch, match="it has main"):
        source_topic_of(load(savepoint), "other")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (QueriedTopic("id", {0: 13, 1: 0}), "has lost the records of partition 0 from offset 12 to 13"),
        (QueriedTopic("id", {0: 0, 1: 0, 2: 4}), "has lost the records of partition 2 from offset 0 to 4"),
        (QueriedTopic("id", {0: 0}), "has no partition 1"),
    ],
)
def test_a_topic_that_lacks_records_is_refused_before_anything_is_written(
    savepoint: Folder, source: QueriedTopic, why: str
) -> None:
    kafka = MemoryKafka()
    with pytest.raises(SavepointMismatch, match=why):
        restored(savepoint, kafka, RestoreOptions("app", real_time={"main": source}))
    with pytest.raises(ChangelogRecreated):
        MemoryChangelog(kafka, "app").control("test").read(1)


def test_a_restore_that_has_ended_says_so_also_where_the_topic_has_lost_records_since(savepoint: Folder) -> None:
    kafka = MemoryKafka()
    restored(savepoint, kafka)
    later = QueriedTopic(SOURCE.topic_id, {0: 1_000, 1: 1_000})
    with pytest.raises(SavepointMismatch, match="restored from this savepoint already: start the job"):
        restored(savepoint, kafka, RestoreOptions(real_time={"main": later}))


def test_a_checkpoint_beside_it_is_refused(savepoint: Folder) -> None:
    with pytest.raises(SavepointMismatch, match="leave out --checkpoint main"):
        plan_of(savepoint, dataclasses.replace(REAL_TIME, checkpoints={"main": "/checkpoint"}))


@pytest.mark.parametrize(
    ("application", "why"),
    [
        (lambda: Application(of=msgspec.structs.replace(SUM, ttl_ms=1000)), "has entries that expire"),
        (lambda: Application(of=SUM, entry=FILE_ENTRY), "its sources are not Kafka topics alone"),
        (lambda: Application(of=SUM, entry=f'{KAFKA_ENTRY}\n{{"more":{{"0":1}}}}'), "it reads 2 sources"),
        (lambda: Application(of=descriptor(kind=StateKind.AGGREGATING)), "is of kind aggregating"),
    ],
)
def test_what_no_real_time_query_could_go_on_with_is_refused_by_its_name(
    tmp_path: Path, application: Callable[[], Application], why: str
) -> None:
    made = application()
    made.complete(3)
    if made.entry == FILE_ENTRY:
        # Such a query's savepoint has its checkpoint, which is not looked at here.
        savepoint = Savepoint("s", "app", 0, (_saved_query(made),), (SavedState(made.of, 0, ()),))
        with pytest.raises(SavepointMismatch, match=why):
            plan_restore(savepoint, REAL_TIME)
        return
    with pytest.raises(SavepointMismatch, match=why):
        plan_of(saved(tmp_path, made), REAL_TIME)


def test_a_query_that_keeps_state_in_spark_is_refused() -> None:
    made = Application(of=SUM, stateful=True)
    made.complete(3)
    savepoint = Savepoint("s", "app", 0, (_saved_query(made),), (SavedState(made.of, 0, ()),))
    with pytest.raises(SavepointMismatch, match="Spark keeps state of its own"):
        plan_restore(savepoint, REAL_TIME)


def _saved_query(made: Application) -> SavedQuery:
    control = read_control(control_of(made.kafka, "app"), "main")
    assert control.complete is not None
    return SavedQuery("main", control.complete, made.query)
