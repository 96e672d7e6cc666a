"""A job that is started again with another schema: the real driver and servers, step by step."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec
import pytest

from keyhole.encoding.envelope import Aggregate, deletion
from keyhole.encoding.row_codec import encode_row
from keyhole.errors import ReplayDiffers, StateChanged
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, TtlClock, ValueField, ValueSchema
from keyhole.protocol.control import QueryControl, read_control
from keyhole.savepoint.create import create
from keyhole.savepoint.folder import Folder
from keyhole.savepoint.restore_application import plan_of, restore
from keyhole.savepoint.restore_plan import RestoreOptions
from keyhole.testing.changelog import MemoryChangelog
from keyhole.testing.clock import ManualClock
from services.state_server.read.table import Table
from tests.support.applications import Application
from tests.support.simulation import DriverDiedError, Fault, World
from tests.support.states import KEY_GROUPS, descriptor, key, names_in

KEYS = [key(names_in(group)[0]) for group in range(KEY_GROUPS)]
UNIT = ValueField("unit", "string", True, msgspec.msgpack.encode("C"))


def declared(*fields: ValueField | tuple[str, str], **changes: object) -> StateDescriptor:
    """As a job declares it: always version 1."""
    made = tuple(field if isinstance(field, ValueField) else ValueField(*field) for field in fields)
    return descriptor(value=ValueSchema(1, made), **changes)


OLD = declared(("n", "float"), ("count", "int"))
NEW = declared(UNIT, ("n", "double"))


@pytest.fixture
def world() -> Iterator[World]:
    """Two servers, each a warm standby for the other's key groups, after an epoch of the old job."""
    made = World(OLD, "ab", standbys=1)
    made.run_epoch(0, rows(1, 1.5, 7))
    made.settle()
    yield made
    made.close()


def rows(version: int, *fields: object, of: list[bytes] = KEYS) -> dict[bytes, bytes | None]:
    return {name: encode_row(version, fields) for name in of}


def restart(world: World, wanted: StateDescriptor) -> None:
    """The job is stopped and another version of it is started; its first epoch is yet to come."""
    world.driver_dies()
    world.descriptor = wanted


def tables(world: World) -> dict[str, Table]:
    return {name: server.tables["app", "counts"] for name, server in world.servers.items() if server.servicer}


def read(world: World) -> dict[str, list[dict[str, object]]]:
    """All keys, as each server tells them by its own descriptor; every one of them has every key."""
    return {
        name: [table.codec.decode_row(row).asdict() for row in table.lookup(KEYS).rows if row is not None]
        for name, table in tables(world).items()
    }


def control(world: World) -> QueryControl:
    return read_control(MemoryChangelog(world.kafka, "app").control("reader").read(1.0), "main")


def test_rows_of_the_old_job_are_read_beside_those_of_the_new_one_by_owners_and_standbys(world: World) -> None:
    restart(world, NEW)
    world.run_epoch(1, rows(2, "F", 2.5, of=KEYS[:2]))
    world.settle()
    new, old = {"unit": "F", "n": 2.5}, {"unit": "C", "n": 1.5}
    assert read(world) == {"a": [new, new, old, old], "b": [new, new, old, old]}


def test_a_server_that_restores_reads_rows_of_all_versions(world: World) -> None:
    restart(world, NEW)
    world.run_epoch(1, rows(2, "F", 2.5, of=KEYS[:2]))
    world.servers["a"].die(lose_store=True)
    world.servers["a"].start()
    world.run_epoch(2, {})
    world.settle()
    assert read(world)["a"] == [{"unit": "F", "n": 2.5}] * 2 + [{"unit": "C", "n": 1.5}] * 2


def test_the_new_schema_is_on_record_after_the_old_one(world: World) -> None:
    restart(world, NEW)
    world.run_epoch(1, {})
    of = control(world).states["counts"]
    assert (of.value, of.earlier) == (ValueSchema(2, NEW.value.fields), (OLD.value,))
    assert of.topic_id == world.kafka.topic_id(of.topic)


def test_servers_tell_the_new_schema_before_the_first_row_of_it_is_committed(world: World) -> None:
    """Proxies and clients hear of it in time."""
    restart(world, NEW)
    fields: dict[str, int] = {}

    def look() -> None:
        fields.update({name: table.descriptor.value.version for name, table in tables(world).items()})

    world.meanwhile["a", "Stage"] = look
    world.run_epoch(1, rows(2, "F", 2.5))
    assert fields == {"a": 2, "b": 2}


def test_the_same_job_started_again_changes_nothing(world: World) -> None:
    before = control(world).states
    restart(world, OLD)
    world.run_epoch(1, rows(1, 2.5, 8))
    assert control(world).states == before


def test_the_old_job_started_again_after_the_new_one_drops_what_that_has_added(world: World) -> None:
    """And the new one after that adds it anew: nothing of the first time comes back."""
    first = declared(("n", "double"))
    second = declared(("n", "double"), UNIT)
    restart(world, first)
    world.run_epoch(1, {})
    restart(world, second)
    world.run_epoch(2, rows(3, 3.0, "F", of=KEYS[:2]))
    restart(world, first)
    world.run_epoch(3, rows(4, 4.0, of=KEYS[1:3]))
    world.settle()
    assert read(world)["a"] == [{"n": 3.0}, {"n": 4.0}, {"n": 4.0}, {"n": 1.5}]
    restart(world, second)
    world.run_epoch(4, {})
    world.settle()
    numbers = [3.0, 4.0, 4.0, 1.5]
    assert read(world) == {name: [{"n": n, "unit": "C"} for n in numbers] for name in "ab"}
    assert control(world).states["counts"].value.version == 5


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (declared(("n", "string")), "field 'n' was float and is string"),
        (declared(("n", "float"), ("count", "smallint")), "field 'count' was int and is smallint"),
        (declared(*OLD.value.fields, order_by="n"), "order_by was none, is n"),
        (declared(*OLD.value.fields, ttl_ms=1000), "ttl was none, is set, by processing time"),
        (declared(*OLD.value.fields, key=(KeyColumn("k", KeyType.INT),)), "key was k string, is k int"),
        (declared(*OLD.value.fields, kind=StateKind.MAP, map_key=(KeyColumn("m", KeyType.INT),)), "map_key was none"),
    ],
)
def test_what_can_not_be_is_refused_at_the_first_batch_by_name_and_the_old_job_goes_on(
    world: World, wanted: StateDescriptor, says: str
) -> None:
    before = control(world)
    restart(world, wanted)
    with pytest.raises(StateChanged, match=says):
        world.run_epoch(1, {})
    assert (control(world).states, control(world).query) == (before.states, before.query)
    restart(world, OLD)
    assert world.run_epoch(1, rows(1, 2.5, 8)).epoch == 2


def test_a_reducer_that_is_another_one_is_refused_by_the_fields_name() -> None:
    of = declared(("n", "bigint"), ("m", "bigint"), kind=StateKind.REDUCING, reducers=("sum", "max"))
    world = World(of)
    world.run_epoch(0, rows(1, 1, 1))
    restart(world, msgspec.structs.replace(of, reducers=("sum", "min")))
    with pytest.raises(StateChanged, match="field 'm' was reduced by max and is by min"):
        world.run_epoch(1, {})
    world.close()


def test_sums_go_on_with_other_fields() -> None:
    world = World(declared(("n", "bigint"), ("m", "bigint"), kind=StateKind.REDUCING, reducers=("sum", "sum")))
    world.run_epoch(0, rows(1, 1, 10))
    restart(world, declared(("new", "bigint"), ("n", "bigint"), kind=StateKind.REDUCING, reducers=("max", "sum")))
    world.run_epoch(1, rows(2, 5, 1, of=KEYS[:2]))
    world.run_epoch(2, rows(2, 4, 1, of=KEYS[:1]))
    world.settle()
    found = {
        name: [table.codec.decode_row(row).asdict() for row in table.lookup([name]).rows if row is not None]
        for table in tables(world).values()
        for name in KEYS
        if table.owned.holds(name)
    }
    assert [found[name] for name in KEYS] == [
        [{"new": 5, "n": 3}],
        [{"new": 5, "n": 2}],
        [{"new": None, "n": 1}],
        [{"new": None, "n": 1}],
    ]
    world.close()


def test_how_long_entries_live_may_change_without_another_version() -> None:
    of = declared(("n", "double"), ttl_ms=1000, ttl_clock=TtlClock.EVENT_TIME)
    world = World(of)
    world.run_epoch(0, rows(1, 1.0))
    restart(world, msgspec.structs.replace(of, ttl_ms=5000))
    world.run_epoch(1, rows(1, 2.0))
    assert control(world).states["counts"].value.version == 1
    assert {table.descriptor.ttl_ms for table in tables(world).values()} == {5000}
    world.close()


def test_deletions_may_get_an_order_and_an_old_job_may_come_back() -> None:
    """A state of an earlier release, whose rows are stored as they are."""
    of = declared(("n", "double"), order_by="n")
    world = World(of, "ab", standbys=1)
    world.run_epoch(0, rows(1, 5.0))
    restart(world, msgspec.structs.replace(of, keep_deleted_ms=60_000))
    world.run_epoch(1, {KEYS[0]: deletion(3.0), KEYS[1]: deletion(7.0)})
    world.run_epoch(2, rows(1, 6.0, of=KEYS[1:2]))
    world.settle()
    fives = {name: [{"n": 5.0}] * 3 for name in "ab"}
    assert read(world) == fives, "without the one that was deleted"
    assert {table.descriptor.keep_deleted_ms for table in tables(world).values()} == {60_000}
    restart(world, of)
    world.run_epoch(3, {KEYS[0]: None})
    world.settle()
    assert read(world) == {name: held[1:] for name, held in fives.items()}
    assert control(world).states["counts"].value.version == 1
    world.close()


def test_a_savepoint_of_the_old_job_goes_on_as_the_new_one(tmp_path: Path) -> None:
    saved, of = Application(), descriptor()
    saved.run(3, {name: 1.5 for group in range(KEY_GROUPS) for name in names_in(group)})
    folder = Folder(str(tmp_path / "savepoint"))
    create("app", saved.changelog, folder, {}, ManualClock())
    world = World(declared(UNIT, ("n", "double")))
    _, plan = plan_of(folder, RestoreOptions(checkpoints={"main": str(tmp_path / "checkpoint")}))
    restore(folder, plan, MemoryChangelog(world.kafka, "app"), ManualClock(), 1)
    world.run_epoch(1, rows(2, "F", 2.5, of=KEYS[:2]), spark_query_id=saved.spark_query_id)
    found = [table.codec.decode_row(row) for table in tables(world).values() for row in owned_rows(table)]
    assert sorted((row.unit, row.n) for row in found) == [("C", 1.5), ("C", 1.5), ("F", 2.5), ("F", 2.5)]
    assert control(world).states["counts"].earlier == (of.value,)
    world.close()


def owned_rows(table: Table, keys: Collection[bytes] = KEYS) -> list[bytes]:
    """In any order."""
    mine = [name for name in keys if table.owned.holds(name)]
    return [row for row in table.lookup(mine).rows if row is not None]


KINDS = {
    "value": descriptor(),
    "map": descriptor(kind=StateKind.MAP, map_key=(KeyColumn("m", KeyType.INT),)),
    "list": descriptor(kind=StateKind.LIST, max_length=5),
    "aggregating": descriptor(kind=StateKind.AGGREGATING),
    "broadcast": descriptor(kind=StateKind.BROADCAST),
}


@pytest.mark.parametrize("ttl_ms", [0, 10_000], ids=["for ever", "with a time to live"])
@pytest.mark.parametrize("kind", KINDS)
def test_entries_of_every_kind_are_read_by_the_new_fields_whatever_else_is_stored_with_a_row(
    kind: str, ttl_ms: int
) -> None:
    old = msgspec.structs.replace(KINDS[kind], ttl_ms=ttl_ms)
    new = msgspec.structs.replace(old, value=ValueSchema(1, (UNIT, ValueField("n", "double"))))
    world = World(old)

    def entries(number: int) -> list[bytes]:
        """One of each key; of a list the element at that position."""
        names = [names_in(group)[0] for group in range(KEY_GROUPS)]
        return [world.codec.storage_key((name, number) if kind in ("map", "list") else name) for name in names]

    def staged(row: bytes) -> bytes:
        if kind != "aggregating":
            return row
        return bytes(4) + Aggregate(0, row, b"an accumulator", None).encode()

    world.run_epoch(0, {name: staged(encode_row(1, [1.5])) for name in entries(0)})
    restart(world, new)
    world.run_epoch(1, {name: staged(encode_row(2, ["F", 2.5])) for name in entries(0)[:2]})
    places = {*entries(0), *entries(1)}
    found = [table.codec.decode_row(row) for table in tables(world).values() for row in owned_rows(table, places)]
    one, other = ("C", 1.5), ("F", 2.5)
    # A list has what was appended beside what there was.
    wanted = [one] * 4 + [other] * 2 if kind == "list" else [one] * 2 + [other] * 2
    assert sorted((row.unit, row.n) for row in found) == wanted
    world.close()


# --- an epoch that the old job has begun ------------------------------------------------------------------------------


@pytest.fixture
def begun(world: World) -> World:
    """The old job has committed its second epoch on one of the servers, and died."""
    world.faults_at["a", "Commit"] = Fault.DRIVER_DIES_AFTER
    with pytest.raises(DriverDiedError):
        world.run_epoch(1, rows(1, 2.5, 8))
    restart(world, NEW)
    return world


def test_an_epoch_that_the_old_job_has_committed_in_part_is_ended_by_the_new_one(begun: World) -> None:
    """The rows can't be the same, so that they differ is no reason to end the job, however strict it is."""
    assert begun.run_epoch(1, rows(2, "F", 2.5), strict=True).replayed
    begun.settle()
    of_old, of_new = {"unit": "C", "n": 2.5}, {"unit": "F", "n": 2.5}
    ended = read(begun)["a"]
    assert ended == read(begun)["b"]
    assert {of_old["unit"], of_new["unit"]} == {row["unit"] for row in ended}
    assert [row["n"] for row in ended] == [2.5] * KEY_GROUPS


def test_the_same_holds_for_the_run_after_one_that_died_there_too(begun: World) -> None:
    begun.faults_at["a", "Stage"] = Fault.DRIVER_DIES
    with pytest.raises(DriverDiedError):
        begun.run_epoch(1, rows(2, "F", 2.5), strict=True)
    assert begun.run_epoch(1, rows(2, "F", 2.5), strict=True).replayed
    assert control(begun).states["counts"].value.version == 2
    # Spark had not noted that the batch is done.
    begun.driver_dies()
    assert begun.run_epoch(1, rows(2, "F", 2.5), strict=True).replayed


def test_later_epochs_must_be_the_same_when_they_are_run_again(begun: World) -> None:
    begun.run_epoch(1, rows(2, "F", 2.5), strict=True)
    begun.run_epoch(2, rows(2, "F", 3.5), strict=True)
    begun.driver_dies()
    with pytest.raises(ReplayDiffers, match="epoch 3"):
        begun.run_epoch(2, rows(2, "K", 3.5), strict=True)
