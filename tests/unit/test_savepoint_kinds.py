"""Savepoints of states whose entries have more than a key, or whose stored rows hold more than the row."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.envelope import Aggregate, Moment, deletion, lifetime
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, TtlClock, ValueField, ValueSchema
from keyhole.savepoint.create import create
from keyhole.savepoint.folder import Folder
from keyhole.savepoint.restore_application import plan_of, restore
from keyhole.savepoint.restore_plan import RestoreOptions
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.clock import ManualClock
from tests.support.applications import Application, control_of, rows_of
from tests.support.hostile_names import NAMES, OF_FIELDS, OF_STATES
from tests.support.states import descriptor, row

HOURS = (KeyColumn("hour", KeyType.TIMESTAMP), KeyColumn("place", KeyType.STRING))
HOUR = datetime(2026, 11, 21, 10, tzinfo=UTC)
KEYS = [f"key-{number}" for number in range(20)]
STAMP = (1_700_000_000_000).to_bytes(8, "big")

FIELDS = f"struct<{','.join(f'{name}:bigint' for name in OF_FIELDS)}>"
KINDS = {
    "map": descriptor(kind=StateKind.MAP, map_key=HOURS),
    "list": descriptor(kind=StateKind.LIST, max_length=5),
    "aggregating": descriptor(kind=StateKind.AGGREGATING),
    "map-ttl": descriptor(kind=StateKind.MAP, map_key=HOURS, ttl_ms=1000),
    "list-ttl": descriptor(kind=StateKind.LIST, ttl_ms=1000, ttl_clock=TtlClock.EVENT_TIME),
    "aggregating-ttl": descriptor(kind=StateKind.AGGREGATING, ttl_ms=1000),
    "value-ttl": descriptor(ttl_ms=1000),
    # Its columns are called as what Python, msgspec, paths and JSON know.
    "names": descriptor(
        kind=StateKind.MAP,
        key=(KeyColumn("type", KeyType.STRING),),
        map_key=(KeyColumn("__class__", KeyType.TIMESTAMP), KeyColumn("a/b\n", KeyType.STRING)),
        value=ValueSchema(1, (ValueField("", "double"),)),
    ),
    "all-names": descriptor(
        value=ValueSchema(1, (*(ValueField(name, "double") for name in NAMES), ValueField("nested", FIELDS)))
    ),
    "map-deletions": descriptor(kind=StateKind.MAP, map_key=HOURS, order_by="n", keep_deleted_ms=1000),
    # Its rows are of the earlier schema.
    "evolved": descriptor(value=ValueSchema(2, ()), earlier=(descriptor().value,)),
}
Content = dict[tuple[object, ...], bytes]
"""By the values of key and map key, what is stored."""


@pytest.fixture(params=KINDS)
def of(request: pytest.FixtureRequest) -> StateDescriptor:
    return KINDS[request.param]


def entries(of: StateDescriptor) -> Content:
    """Three entries of each key, or one."""
    suffixes: list[tuple[object, ...]] = [()]
    if of.kind is StateKind.MAP:
        suffixes = [(HOUR, "a\0b"), (HOUR, ""), (HOUR.replace(hour=11), "c")]
    if of.kind is StateKind.LIST:
        suffixes = [(7,), (8,), (9,)]
    made: Content = {}
    for key in KEYS:
        for number, suffix in enumerate(suffixes):
            plain = row(float(number))
            stored = Aggregate(3, plain, b"sum", None).encode() if of.kind is StateKind.AGGREGATING else plain
            made[key, *suffix] = STAMP + stored if of.ttl_ms else stored
        if of.keep_deleted_ms:
            # Of an entry, and of all that the key had.
            deleted = lifetime(of).entries(Moment(1_700_000_000_000, 0))  # type: ignore[union-attr]  # it has one
            made |= {(key, HOUR, "gone"): deleted(deletion(3.0)), (key,): deleted(deletion(-1.0))}
    return made


def stored(content: Content, of: StateDescriptor) -> dict[bytes, bytes]:
    codec = StateCodec(of)

    def storage_key(key: object, *map_key: object) -> bytes:
        if of.map_key and not map_key:
            return codec.prefix(key)
        return codec.storage_key((key, *map_key) if map_key else key)

    return {storage_key(*values): row for values, row in content.items()}


@pytest.mark.parametrize("groups", [1, 3, 4, 64])
def test_every_kind_comes_back_entry_by_entry_with_any_number_of_key_groups_and_under_other_names(
    of: StateDescriptor, groups: int, tmp_path: Path
) -> None:
    made, content = Application(of=of), entries(of)
    made.commit_rows(3, stored(content, of))
    gone = (KEYS[0], *next(values[1:] for values in content if values[0] == KEYS[0]))
    made.commit_rows(4, dict.fromkeys(stored({gone: b""}, of)))
    made.complete(4)
    saved = Folder(str(tmp_path / "savepoint"))
    create("app", made.changelog, saved, {}, ManualClock())
    options = RestoreOptions(
        application="copy",
        key_groups={"counts": groups},
        states={"counts": "again"},
        checkpoints={"main": str(tmp_path / "checkpoint")},
    )
    empty = MemoryKafka()
    _, plan = plan_of(saved, options)
    restore(saved, plan, MemoryChangelog(empty, "copy"), ManualClock(), 1)
    restored = msgspec.json.decode(control_of(empty, "copy")["state/again"], type=StateDescriptor)
    changed = {"application": "copy", "state": "again", "key_groups": groups, "topic_id": restored.topic_id}
    assert restored == msgspec.structs.replace(of, **changed)
    del content[gone]
    assert rows_of(empty, restored) == stored(content, restored)


@pytest.mark.parametrize("name", OF_STATES)
def test_a_state_an_application_and_a_query_of_any_name_come_back(name: str, tmp_path: Path) -> None:
    of = descriptor(application=name, state=name, query=name)
    made = Application(of=of)
    made.commit_rows(3, stored(entries(of), of))
    made.complete(3)
    saved = Folder(str(tmp_path / "savepoint"))
    create(name, made.changelog, saved, {}, ManualClock())
    empty = MemoryKafka()
    _, plan = plan_of(saved, RestoreOptions(checkpoints={name: str(tmp_path / "checkpoint")}))
    restore(saved, plan, MemoryChangelog(empty, name), ManualClock(), 1)
    restored = msgspec.json.decode(control_of(empty, name)[f"state/{name}"], type=StateDescriptor)
    assert restored == msgspec.structs.replace(of, topic_id=restored.topic_id)
    assert rows_of(empty, restored) == stored(entries(of), restored)
