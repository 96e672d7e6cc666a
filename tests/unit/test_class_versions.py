"""The version of a job's class: what is stored of it, what a task makes of an earlier one, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.columnar import OP, VALUE
from keyhole.encoding.envelope import Aggregate, Base, decode_aggregate, layout_of
from keyhole.encoding.row_codec import encode_row
from keyhole.errors import InvalidConfiguration, StateChanged, ValueMismatch
from keyhole.model.epoch import EpochStamp, Run
from keyhole.model.evolution import succeeds, written_otherwise
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.protocol.receipts import StageOrder
from keyhole.protocol.registration import settled
from keyhole.rpc.convert import descriptor_from_proto, descriptor_to_proto
from keyhole.savepoint.create import create
from keyhole.savepoint.folder import Folder
from keyhole.savepoint.manifest import MANIFEST
from keyhole.savepoint.restore_application import plan_of, restore
from keyhole.savepoint.restore_plan import RestoreOptions
from keyhole.spark.declaration.value_codec import ENCODED, VERSION, Encoding, encoded_fields
from keyhole.spark.operators import Mode, Subtask
from keyhole.spark.worker.aggregating import Aggregation, aggregated
from keyhole.spark.worker.base_reader import BaseReader
from keyhole.spark.worker.subtasks import SUBTASK, SubtaskNumber, _Before, _StoredSubtask
from keyhole.testing.changelog import MemoryChangelog
from tests.support.aggregating_tasks import NAMES, Tasks, found
from tests.support.simulation import DriverDiedError, Fault
from tests.support.states import descriptor
from tests.support.versions import VERSIONS, Bytes, First, Second, WiderBytes, aggregating

versions = st.integers(1, 255)


# --- what is stored ---------------------------------------------------------------------------------------------------


def test_an_entry_of_version_1_is_stored_as_before_there_were_versions() -> None:
    stored = bytes.fromhex("0000000000000007 00000002 00000003 00000002") + b"rwaccb"
    entry = Aggregate(7, b"rw", b"acc", b"b")
    assert entry.encode() == stored
    assert decode_aggregate(stored) == entry
    assert (entry.as_of(8), entry.as_of(7)) == (Base(b"acc", 1), Base(b"b", 1))


@given(st.integers(0, (1 << 48) - 1), st.binary(), st.binary(), st.none() | st.binary(), versions, versions)
def test_an_entry_knows_the_versions_of_both_accumulators_and_takes_no_more_room(
    epoch: int, row: bytes, accumulator: bytes, before: bytes | None, version: int, version_before: int
) -> None:
    entry = Aggregate(epoch, row, accumulator, before, version, version_before)
    assert decode_aggregate(entry.encode()) == entry
    assert len(entry.encode()) == len(Aggregate(epoch, row, accumulator, before).encode())


def test_a_state_has_another_layout_once_its_accumulators_may_be_of_another_version() -> None:
    assert [layout_of(aggregating(version)) for version in (0, 1, 2)] == [1, 1, 3]
    assert layout_of(descriptor(class_version=2)) == 1, "of a codec the version is a field of the value"
    assert layout_of(descriptor(order_by="n")) == 2


def test_a_descriptor_keeps_the_version_on_its_way_and_one_of_an_earlier_release_has_none() -> None:
    of = aggregating(2)
    assert descriptor_from_proto(descriptor_to_proto(of)) == of
    earlier = {name: value for name, value in msgspec.to_builtins(of).items() if name != "class_version"}
    assert msgspec.convert(earlier, StateDescriptor).class_version == 0


# --- what a start may declare -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "now"), [(0, 1), (1, 1), (0, 2), (1, 2), (2, 3), (1, 3), (2, 2)])
def test_a_class_may_be_of_the_same_version_or_a_later_one(before: int, now: int) -> None:
    stored, wanted = aggregating(before, topic_id="t"), aggregating(now)
    after = settled(stored, wanted)
    assert (after.class_version, after.value, after.earlier) == (now, stored.value, ())
    assert written_otherwise({"counts": stored}, [after]) is (now > max(1, before)), (
        "a batch that is run again gives others"
    )
    assert succeeds(after, stored)
    assert now == before or not succeeds(stored, after)


def test_an_earlier_version_of_a_class_is_refused_with_the_ways_out() -> None:
    with pytest.raises(StateChanged, match="written by version 3 of its class, and the job has version 1") as caught:
        settled(aggregating(3), aggregating(1))
    assert all(
        way in caught.value.message for way in ("version 3 or a later", "version 4", "savepoint", "another name")
    )


ENCODED_STATE = {"value": ValueSchema(1, encoded_fields(versioned=False)), "class_version": 1}


@pytest.mark.parametrize("kind", [StateKind.VALUE, StateKind.MAP, StateKind.LIST, StateKind.BROADCAST])
def test_a_codec_is_neither_added_to_a_state_nor_taken_away_from_it(kind: StateKind) -> None:
    """The rows of before would be read as null."""
    plain, encoded = descriptor(kind=kind), descriptor(kind=kind, **ENCODED_STATE)
    for stored, wanted, says in ((plain, encoded, "codec was none, is set"), (encoded, plain, "codec was set, is non")):
        with pytest.raises(StateChanged, match=says):
            settled(stored, wanted)


def test_a_codec_of_a_state_that_an_earlier_release_has_recorded_goes_on() -> None:
    wanted = descriptor(**ENCODED_STATE)
    assert settled(msgspec.structs.replace(wanted, class_version=0), wanted) == wanted


def test_bytes_of_a_column_may_become_those_of_a_codec() -> None:
    stored = descriptor(value=ValueSchema(1, (ValueField(ENCODED, "binary"),)))
    assert StateCodec(settled(stored, descriptor(**ENCODED_STATE))).decode_row(encode_row(1, [b"x"])).value == b"x"


def test_values_of_before_a_codec_had_a_version_are_read_as_of_version_1() -> None:
    later = descriptor(value=ValueSchema(1, encoded_fields(versioned=True)), class_version=2)
    of = settled(descriptor(**ENCODED_STATE), later)
    codec = StateCodec(of)
    found = [codec.decode_row(row) for row in (encode_row(1, [b"old"]), encode_row(2, [b"new", 2]))]
    assert [(row.value, row.version) for row in found] == [(b"old", 1), (b"new", 2)]
    assert settled(of, msgspec.structs.replace(later, class_version=3)).value == of.value, "the rows say which"


# --- what a task makes of it ------------------------------------------------------------------------------------------


class Holder(BaseReader):
    """Owners that hold these accumulators."""

    held: dict[bytes, Base]

    def bases(self, keys: Sequence[bytes]) -> dict[bytes, Base]:
        return {key: self.held[key] for key in keys if key in self.held}


@pytest.fixture
def holder(monkeypatch: pytest.MonkeyPatch) -> type[Holder]:
    monkeypatch.setattr("keyhole.spark.worker.aggregating.BaseReader", Holder)
    Holder.held = {}
    return Holder


def staged(aggregator: Any, rows: Sequence[tuple[str, int]], of: StateDescriptor) -> dict[str, Aggregate]:
    keys, values = zip(*rows, strict=True)
    batch = pa.record_batch(
        {"k": pa.array(keys, pa.string()), "v": pa.array(values, pa.int64()), OP: ["put"] * len(keys)}
    )
    order = StageOrder(Run("app", "main", 1, "run"), EpochStamp(5, 1, 0, 0), 0, 1, (), {"counts": (0,) * 4}, 60.0, {})
    found = {}
    for some in aggregated(order, of, Aggregation(aggregator, ("v",)), [batch], lambda _: pytest.fail("unused")):
        for row in some.to_pylist():
            found[StateCodec(of).key(row["storage_key"])[0]] = decode_aggregate(row[VALUE][4:])
    return cast("dict[str, Aggregate]", found)


def read(entry: Aggregate, of: StateDescriptor) -> tuple[int, int]:
    row = StateCodec(of).decode_row(entry.row)
    return row.total, row.rows


def test_an_accumulator_of_an_earlier_version_is_upgraded_before_it_is_merged_with(holder: type[Holder]) -> None:
    of = aggregating(3)
    key = StateCodec(of).storage_key
    holder.held = {
        key("first"): Base(msgspec.msgpack.encode([7, 1]), 1),
        key("second"): Base(msgspec.msgpack.encode({"total": 70, "rows": 2}), 2),
        key("third"): Base(msgspec.msgpack.encode([700_000, 3]), 3),
    }
    found = staged(VERSIONS[3](), [(name, 5) for name in ("first", "second", "third", "new")], of)
    assert {name: read(entry, of) for name, entry in found.items()} == {
        "first": (12, 2),
        "second": (75, 3),
        "third": (705, 4),
        "new": (5, 1),
    }
    assert {entry.version for entry in found.values()} == {3}


def test_an_aggregator_with_an_encoding_of_its_own_is_given_the_bytes(holder: type[Holder]) -> None:
    of, WiderBytes.given[:] = aggregating(2), []
    old = Bytes().encode([7, 1])
    holder.held = {StateCodec(of).storage_key("a"): Base(old, 1)}
    found = staged(WiderBytes(), [("a", 3)], of)
    assert WiderBytes.given == [(old, 1)]
    assert WiderBytes().decode(found["a"].accumulator) == [10, 2]


def test_what_upgrade_gives_must_be_plain_data(holder: type[Holder]) -> None:
    class Sets(Second):
        def upgrade(self, accumulator: Any, version: int) -> Any:
            return {"total": {1}, "rows": 1}

    holder.held = {StateCodec(aggregating(2)).storage_key("a"): Base(msgspec.msgpack.encode([7, 1]), 1)}
    with pytest.raises(ValueMismatch, match="of state 'counts' holds a set"):
        staged(Sets(), [("a", 3)], aggregating(2))


def test_an_accumulator_of_a_later_version_is_refused(holder: type[Holder]) -> None:
    holder.held = {StateCodec(aggregating(2)).storage_key("a"): Base(b"", 5)}
    with pytest.raises(StateChanged, match=r"holds something of version 5 .* Second has version 2; run .* version 5"):
        staged(Second(), [("a", 3)], aggregating(2))


def test_a_worker_that_has_loaded_another_version_than_the_driver_is_told(holder: type[Holder]) -> None:
    with pytest.raises(
        InvalidConfiguration, match="a Spark worker has version 1 of First, and the driver has version 2"
    ):
        staged(First(), [("a", 3)], aggregating(2))


class Later:
    """An operator whose elements were numbers, and are texts."""

    version = 2

    def process(self, subtask: Subtask, elements: list[Any], rows: Iterator[Any]) -> list[Any]:
        return elements

    def result(self, elements: Sequence[Any]) -> tuple[int]:
        return (len(elements),)

    def upgrade(self, elements: list[Any], version: int) -> list[Any]:
        assert version == 1
        return [str(element) for element in elements]


@pytest.mark.parametrize(("mode", "now"), [("list", 2), ("list", 3), ("union", 1)])
def test_an_operator_upgrades_what_each_subtask_held_before_it_is_dealt_out(mode: Mode, now: int) -> None:
    of = descriptor(kind=StateKind.AGGREGATING, key=(KeyColumn(SUBTASK, KeyType.INT),), class_version=2)
    codec = StateCodec(of)
    holder = Holder.__new__(Holder)
    holder.held = {
        codec.storage_key(0): Base(msgspec.msgpack.encode(_StoredSubtask(2, [1, 2])), 1),
        codec.storage_key(1): Base(msgspec.msgpack.encode(_StoredSubtask(2, ["3", "4"])), 2),
    }
    shares = []
    for index in range(now):
        before = _Before(holder, codec, index, SubtaskNumber(now, max(now, 2), now), Later())
        shares.append(before.elements(Subtask(index, now, restored=now != 2), mode))
    assert sorted(element for share in shares for element in share) == ["1", "2", "3", "4"]


def test_each_value_that_a_codec_with_a_version_makes_says_which() -> None:
    class Upper:
        version = 4

        def encode(self, row: Any) -> bytes:
            return str(row.v).upper().encode()

    of = descriptor(value=ValueSchema(1, encoded_fields(versioned=True)), class_version=4)
    rows = pa.record_batch({"k": ["a", "b"], "v": ["x", "y"], "version": ["u", "w"], OP: ["put", "delete"]})
    (encoded,) = Encoding(Upper(), ("v", "version")).encoded([rows], of)
    assert encoded.to_pydict() == {"k": ["a", "b"], OP: ["put", "delete"], ENCODED: [b"X", b""], VERSION: [4, 4]}
    with pytest.raises(InvalidConfiguration, match=r"a Spark worker has version 4 of Upper, .* driver has version 3"):
        list(Encoding(Upper(), ("v",)).encoded([rows], msgspec.structs.replace(of, class_version=3)))


# --- on servers -------------------------------------------------------------------------------------------------------

MakeWorld = Callable[..., Tasks]


@pytest.fixture
def made() -> Iterator[MakeWorld]:
    """Makes servers and drivers of a job whose class has a version; each server follows what the other owns."""
    worlds: list[Tasks] = []

    def make(version: int, **changes: object) -> Tasks:
        worlds.append(Tasks(aggregating(version, **changes), "ab", standbys=1))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


def run(world: Tasks, batch_id: int, value: int, names: Sequence[str] = NAMES) -> None:
    """An epoch of one row of each of the keys. Where it is run again, it must bring the same."""
    world.run_epoch(batch_id, {name: [value] for name in names}, strict=True)  # type: ignore[arg-type]  # see Tasks


def counted(world: Tasks) -> dict[str, tuple[int, int]]:
    """What readers get, of every copy."""
    world.settle()
    one, other = found(world)
    assert one == other
    return one


def test_a_savepoint_of_an_earlier_version_goes_on_with_a_later_one(made: MakeWorld, tmp_path: Path) -> None:
    world, folder = made(1), Folder(str(tmp_path / "savepoint"))
    run(world, 0, 5)
    create("app", MemoryChangelog(world.kafka, "app"), folder, {}, world.clock)
    restored = into(made(2), folder, tmp_path)
    run(restored, 1, 7, NAMES[:1])
    assert counted(restored) == {NAMES[0]: (12, 2)} | dict.fromkeys(NAMES[1:], (5, 1))


def test_a_savepoint_of_a_later_version_is_refused_by_an_earlier_one_and_by_releases_without_versions(
    made: MakeWorld, tmp_path: Path
) -> None:
    world, folder = made(1), Folder(str(tmp_path / "savepoint"))
    run(world, 0, 5)
    world.starts_anew(2)
    run(world, 1, 7, NAMES[:1])
    create("app", MemoryChangelog(world.kafka, "app"), folder, {}, world.clock)
    assert msgspec.json.decode(folder.read(MANIFEST))["format"] == 3
    restored = into(made(1), folder, tmp_path)
    with pytest.raises(StateChanged, match="written by version 2 of its class, and the job has version 1"):
        run(restored, 2, 1)
    restored.starts_anew(3)
    run(restored, 2, 1)
    assert counted(restored) == {NAMES[0]: (13, 3)} | dict.fromkeys(NAMES[1:], (6, 2))


def into(world: Tasks, folder: Folder, directory: Path) -> Tasks:
    """Servers whose Kafka a savepoint was restored into."""
    _, plan = plan_of(folder, RestoreOptions(checkpoints={"main": str(directory / f"checkpoint-{id(world)}")}))
    restore(folder, plan, MemoryChangelog(world.kafka, "app"), world.clock, 1)
    return world


@pytest.mark.parametrize("fault", [Fault.DRIVER_DIES, Fault.DRIVER_DIES_AFTER])
def test_an_epoch_that_a_later_version_runs_again_is_merged_with_what_was_before_it(
    made: MakeWorld, fault: Fault
) -> None:
    """One server has committed it, or both have, when the driver dies: by the first version, and by the second."""
    for committed_by in (1, 2):
        world = made(1)
        run(world, 0, 5)
        world.starts_anew(committed_by)
        world.faults_at["b", "Commit"] = fault
        with pytest.raises(DriverDiedError):
            run(world, 1, 7)
        world.starts_anew(3)
        run(world, 1, 7)
        assert counted(world) == dict.fromkeys(NAMES, (12, 2))


def test_what_has_expired_is_not_upgraded(made: MakeWorld) -> None:
    world = made(1, ttl_ms=1000)
    run(world, 0, 5)
    world.starts_anew(2)
    run(world, 1, 7, NAMES[:1])
    assert counted(world)[NAMES[0]] == (12, 2)
    world.clock.advance(5)
    run(world, 2, 7)
    assert counted(world) == dict.fromkeys(NAMES, (7, 1))


def test_a_server_that_takes_over_goes_on_with_accumulators_of_both_versions(made: MakeWorld) -> None:
    world = made(1)
    run(world, 0, 5)
    world.starts_anew(2)
    run(world, 1, 7, NAMES[:2])
    world.settle()
    world.servers["a"].die(lose_store=True)
    run(world, 2, 1)
    world.servers["a"].start()
    run(world, 3, 1)
    assert counted(world) == dict.fromkeys(NAMES[:2], (14, 4)) | dict.fromkeys(NAMES[2:], (7, 3))
