"""Assignments that fail leave nothing half-open; a state that nobody could use is never on record, and where an earlier
version has recorded one, others don't suffer from it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.row_codec import encode_row
from keyhole.errors import SavepointMismatch, StateChanged, StoreFull, ValueMismatch
from keyhole.model.epoch import NO_EPOCH
from keyhole.model.evolution import evolved
from keyhole.model.state import StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.protocol.control import (
    CompleteRecord,
    GenerationRecord,
    QueryControl,
    QueryRecord,
    read_control,
    record,
)
from keyhole.protocol.registration import settled
from keyhole.protocol.start import UPDATES
from keyhole.savepoint.create import create
from keyhole.savepoint.folder import Folder
from keyhole.savepoint.manifest import SavedState
from keyhole.savepoint.restore_plan import RestoreOptions, plan_restore
from keyhole.savepoint.subject import subject_of
from keyhole.stores.base import StoreEngine, StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.stores.rocksdb.engine import RocksdbEngine
from keyhole.testing.changelog import MemoryChangelog
from keyhole.testing.clock import ManualClock
from services.state_server.replica.take_over import StateShare
from tests.support.applications import Application
from tests.support.failing_engine import FailingEngine
from tests.support.hosts import Hosted
from tests.support.simulation import World
from tests.support.states import KEY_GROUPS, descriptor, key, names_in, row
from tests.support.waiting import PATIENCE_SECONDS, eventually

ALL = frozenset(range(KEY_GROUPS))
KEYS = [key(names_in(group)[0]) for group in range(KEY_GROUPS)]
A = KEYS[0]
NUMBER = ValueField("n", "double")
# An earlier version let it be declared.
NAMELESS = ValueField("s", "struct<:int>")
TWICE = ValueField("s", "struct<a:int,a:string>")
UNKNOWN = ValueField("s", "colour")


def of(*fields: ValueField, **changes: object) -> StateDescriptor:
    return descriptor(value=ValueSchema(1, fields), **changes)


BROKEN = of(NAMELESS, state="broken")
OTHER = of(NUMBER, state="other")


# --- assignments that fail --------------------------------------------------------------------------------------------

ENGINES: dict[str, Callable[[Path], StoreEngine]] = {
    "memory": lambda _: MemoryEngine(),
    "lmdb": lambda path: LmdbEngine(StoreLimits(path)),
    "rocksdb": lambda path: RocksdbEngine(StoreLimits(path)),
}


@pytest.fixture(params=ENGINES)
async def failing(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[tuple[Hosted, FailingEngine]]:
    engine = FailingEngine(ENGINES[request.param](tmp_path / "stores"))
    hosted = Hosted(engine=engine)
    for state in (OTHER, BROKEN):
        MemoryChangelog(hosted.kafka, "app").admin().ensure(state, 5)
    await hosted.open()
    yield hosted, engine
    await hosted.host.close()
    engine.close()


async def assign(hosted: Hosted, *states: StateDescriptor) -> None:
    hosted.version += 1
    shares = [StateShare(state, ALL) for state in states]
    assert await hosted.host.assign(hosted.run, hosted.version, shares, NO_EPOCH, PATIENCE_SECONDS)


@pytest.mark.parametrize("where", ["opening", "looking"])
async def test_an_assignment_that_fails_in_a_store_succeeds_when_the_store_does(
    failing: tuple[Hosted, FailingEngine], where: str
) -> None:
    hosted, engine = failing
    for error in (StoreFull("no room"), OSError("gone"), ValueError("what nobody has thought of")):
        setattr(engine, where, error)
        with pytest.raises(type(error), match=str(error)):
            await assign(hosted, hosted.of, OTHER)
    assert not hosted.tables
    await assign(hosted, hosted.of, OTHER)
    await hosted.apply(1, {A: row(1.0)})
    assert hosted.read(A) == [row(1.0)]


async def test_a_state_whose_store_fails_does_not_close_those_before_it(
    failing: tuple[Hosted, FailingEngine],
) -> None:
    hosted, engine = failing
    await assign(hosted, hosted.of)
    await hosted.apply(1, {A: row(1.0)})
    engine.looking = StoreFull("no room")
    with pytest.raises(StoreFull):
        await assign(hosted, hosted.of, OTHER)
    assert hosted.read(A) == [row(1.0)]
    await assign(hosted, hosted.of, OTHER)
    assert engine.opened == ["counts", "other", "other"]
    assert hosted.tables.keys() == {("app", "counts"), ("app", "other")}


@pytest.mark.parametrize("field", [NAMELESS, TWICE, UNKNOWN])
async def test_a_state_that_can_not_be_used_is_refused_by_name_again_and_again_and_leaves_nothing_open(
    failing: tuple[Hosted, FailingEngine], field: ValueField
) -> None:
    hosted, engine = failing
    for _ in range(2):
        with pytest.raises(ValueMismatch, match=r"state app/broken can't be used: field 's'.*another name"):
            await assign(hosted, of(field, state="broken"), OTHER)
    assert not engine.opened
    await assign(hosted, of(NUMBER, state="broken"), OTHER)
    assert sorted(engine.opened) == ["broken", "other"]


async def test_a_schema_that_can_not_be_used_leaves_the_state_as_it_was(failing: tuple[Hosted, FailingEngine]) -> None:
    """Half of it was taken over, so that the next assignment succeeded, and no reader could read what was written."""
    hosted, _ = failing
    await assign(hosted, hosted.of)
    await hosted.apply(1, {A: row(1.0)})
    for _ in range(2):
        with pytest.raises(ValueMismatch, match="state app/counts can't be used"):
            await assign(hosted, evolved(hosted.of, of(NUMBER, NAMELESS)))
    assert (hosted.table.descriptor, hosted.table.codec.descriptor) == (hosted.of, hosted.of)
    assert hosted.host._states.hosted["counts"].descriptor == hosted.of
    assert hosted.read(A) == [row(1.0)]
    newer = evolved(hosted.of, of(NUMBER, ValueField("type", "string")))
    await assign(hosted, newer)
    await hosted.apply(2, {A: encode_row(2, [2.0, "new"])})
    (stored,) = hosted.read(A)
    assert stored is not None
    assert hosted.table.codec.decode_row(stored).type == "new"


# --- what an earlier version has recorded -----------------------------------------------------------------------------


async def test_a_replica_follows_the_query_s_other_states_and_tells_of_the_one_that_can_not_be_used_once(
    failing: tuple[Hosted, FailingEngine], caplog: pytest.LogCaptureFixture
) -> None:
    owner, _ = failing
    await assign(owner, owner.of)
    await owner.apply(1, {A: row(1.0)})
    replica = Hosted(kafka=owner.kafka)
    with caplog.at_level(logging.ERROR, "services.state_server.write.query_states"):
        for _ in range(2):
            await replica.host.follow([StateShare(state, frozenset(), ALL) for state in (BROKEN, owner.of)])
    await eventually(lambda: replica.table.standby.groups == ALL)
    assert replica.read(A) == [row(1.0)]
    (logged,) = caplog.records
    assert "state app/broken can't be used: field 's'" in logged.why  # type: ignore[attr-defined]  # as it is logged
    await replica.host.close()


async def test_a_standby_goes_on_with_the_schema_before_one_that_can_not_be_used(
    failing: tuple[Hosted, FailingEngine], caplog: pytest.LogCaptureFixture
) -> None:
    owner, _ = failing
    await assign(owner, owner.of)
    await owner.apply(1, {A: row(1.0)})
    standby = Hosted(kafka=owner.kafka)
    await standby.host.follow([StateShare(standby.of, frozenset(), ALL)])
    control = MemoryChangelog(owner.kafka, "app").control("main")
    control.open(1)
    unusable = evolved(standby.of, of(NUMBER, NAMELESS))
    control.append(record("generation", "main", GenerationRecord(2, "run")) | record("state", "counts", unusable), 1)
    await eventually(
        lambda: "state app/counts can't be used" in str([vars(logged).get("why") for logged in caplog.records])
    )
    await owner.apply(2, {A: row(2.0)})
    await eventually(lambda: standby.table.standby.groups == ALL and standby.read(A) == [row(2.0)])
    assert standby.table.descriptor == standby.of
    await standby.host.close()


# --- what is recorded -------------------------------------------------------------------------------------------------


@pytest.fixture
def world() -> Iterator[World]:
    made = World(of(NUMBER), "ab")
    made.run_epoch(0, dict.fromkeys(KEYS, row(1.0)))
    yield made
    made.close()


def control(world: World) -> QueryControl:
    return read_control(MemoryChangelog(world.kafka, "app").control("reader").read(1.0), "main")


def restart(world: World, wanted: StateDescriptor) -> None:
    """The job is stopped and another version of it is started; its first epoch is yet to come."""
    world.driver_dies()
    world.descriptor = wanted


@pytest.mark.parametrize("field", [NAMELESS, TWICE, UNKNOWN])
@pytest.mark.parametrize("state", ["counts", "broken"])
def test_a_job_that_declares_what_can_not_be_used_is_refused_before_it_is_on_record_and_can_be_mended(
    world: World, field: ValueField, state: str
) -> None:
    before = control(world)
    restart(world, of(NUMBER, field, state=state))
    with pytest.raises(ValueMismatch, match=rf"state app/{state} can't be used: field 's'"):
        world.run_epoch(1, {})
    assert (control(world).states, control(world).query) == (before.states, before.query)
    # Its topic was not made either.
    assert world.kafka.topic_id("keyhole.app.broken") is None
    restart(world, of(NUMBER, ValueField("s", "struct<type:int>"), state=state))
    assert world.run_epoch(1, dict.fromkeys(KEYS, encode_row(2 if state == "counts" else 1, [2.0, [3]]))).epoch == 2


def test_a_column_called_type_is_added_to_a_live_state_and_dropped_again(world: World) -> None:
    """An earlier version committed its rows, and from then on nobody could describe the state any more."""
    restart(world, of(NUMBER, ValueField("type", "string")))
    world.run_epoch(1, dict.fromkeys(KEYS[:2], encode_row(2, [2.0, "new"])))
    assert [(row.n, row.type) for row in read(world)] == [(2.0, "new")] * 2 + [(1.0, None)] * 2
    restart(world, of(NUMBER))
    world.run_epoch(2, dict.fromkeys(KEYS[:1], encode_row(3, [3.0])))
    assert [row.asdict() for row in read(world)] == [{"n": n} for n in (3.0, 2.0, 1.0, 1.0)]


def read(world: World) -> list[Any]:
    """All keys, as a reader that describes the state now reads them."""
    codec = StateCodec(control(world).states["counts"])
    found: dict[bytes, bytes] = {}
    for server in world.servers.values():
        table = server.tables["app", "counts"]
        mine = [name for name in KEYS if table.owned.holds(name)]
        found |= {name: row for name, row in zip(mine, table.lookup(mine).rows, strict=True) if row is not None}
    return [codec.decode_row(found[name]) for name in KEYS]


def test_what_an_earlier_version_has_recorded_is_told_by_name_and_harms_no_other_state(world: World) -> None:
    log = MemoryChangelog(world.kafka, "app").control("other")
    log.open(1)
    log.append(record("state", "broken", BROKEN), 1)
    restart(world, of(NUMBER))
    assert world.run_epoch(1, dict.fromkeys(KEYS, row(2.0))).epoch == 2
    restart(world, BROKEN)
    with pytest.raises(ValueMismatch, match=r"state app/broken can't be used: field 's'.*give the state another name"):
        world.run_epoch(2, {})
    restart(world, of(ValueField("s", "struct<a:int>"), state="broken"))
    with pytest.raises(StateChanged, match=r"was struct<:int> and is struct<a:int> .*needs a name.*another name"):
        world.run_epoch(2, {})
    # Under another name the field is a new one, and the old one is gone.
    restart(world, of(ValueField("t", "struct<a:int>"), state="broken"))
    assert world.run_epoch(2, dict.fromkeys(KEYS, encode_row(2, [[3]]))).epoch == 3


def test_a_savepoint_leaves_out_what_can_not_be_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    application = Application()
    application.run(3, {"a": 1.0})
    application.control.append(record("state", "broken", BROKEN), 1)
    folder = Folder(str(tmp_path / "savepoint"))
    saved = create("app", application.changelog, folder, {}, ManualClock())
    assert [state.descriptor.state for state in saved.states] == ["counts"]
    assert [logged.state for logged in caplog.records if "left out" in logged.message] == ["broken"]  # type: ignore[attr-defined]  # as it is logged
    # Earlier versions have saved them, without rows.
    older = msgspec.structs.replace(saved, states=(*saved.states, SavedState(BROKEN, 0, ())))
    plan = plan_restore(older, RestoreOptions(checkpoints={"main": str(tmp_path / "checkpoint")}))
    assert [state.descriptor.state for state in plan.states] == ["counts"]


def test_a_savepoint_leaves_out_what_is_fed_by_updates_and_says_so(tmp_path: Path) -> None:
    application = Application()
    application.run(3, {"a": 1.0})
    fed = of(NUMBER, state="fed", query="feed", updates_topic_id="updates-1")
    log = record("state", "fed", fed) | record("query", "feed", QueryRecord(UPDATES, base=0))
    log |= record("complete", "feed", CompleteRecord(0, 1, 0, 0, 0, {}))
    application.control.append(log, 1)
    saved = create("app", application.changelog, Folder(str(tmp_path / "savepoint")), {}, ManualClock())
    assert [state.descriptor.state for state in saved.states] == ["counts"]
    assert (saved.fed_queries, saved.skipped_queries) == (("feed",), ())
    alone = {name: value for name, value in log.items() if value is not None}
    with pytest.raises(SavepointMismatch, match=r"are fed by updates \(feed\)"):
        subject_of("app", alone)


def test_a_broadcast_state_is_restored_into_its_one_key_group(tmp_path: Path) -> None:
    rules = msgspec.structs.replace(OTHER, state="rules", kind=StateKind.BROADCAST, key_groups=1)
    application = Application()
    application.run(3, {"a": 1.0})
    saved = create("app", application.changelog, Folder(str(tmp_path / "savepoint")), {}, ManualClock())
    saved = msgspec.structs.replace(saved, states=(*saved.states, SavedState(rules, 0, ())))
    checkpoints = {"main": str(tmp_path / "checkpoint")}
    with pytest.raises(SavepointMismatch, match="a broadcast state always has 1"):
        plan_restore(saved, RestoreOptions(checkpoints=checkpoints, key_groups={"rules": 8}))
    assert len(plan_restore(saved, RestoreOptions(checkpoints=checkpoints)).states) == 2


@pytest.mark.parametrize("field", [NAMELESS, TWICE, UNKNOWN, ValueField("s", "array<struct<:int>>")])
def test_what_can_not_be_used_is_told_alike_wherever_it_is_met(field: ValueField) -> None:
    """A proxy and a client make a codec of what they are told."""
    with pytest.raises(ValueMismatch, match="field 's': a state can't hold values of type") as caught:
        StateCodec(of(NUMBER, field))
    assert caught.value.facts == {"state": "app/counts", "field": "s"}
    with pytest.raises(ValueMismatch, match=str(caught.value)):
        settled(None, of(NUMBER, field))


def test_two_fields_of_one_name_are_refused_by_it() -> None:
    with pytest.raises(ValueMismatch, match="state app/counts can't be used: two fields have the name 'n'"):
        StateCodec(of(NUMBER, NUMBER))
