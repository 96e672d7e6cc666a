"""`keyhole verify` of indexes: each entry against the copy's rows, each row against the entries, on every engine."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec
import pytest

from keyhole.cli.verify_state import copy_rows, difference_rows
from keyhole.encoding.indexed_fields import indexed_fields
from keyhole.encoding.row_codec import encode_row
from keyhole.encoding.storage_key import group_of
from keyhole.model.epoch import START
from keyhole.model.state import StateDescriptor, ValueField, ValueSchema
from keyhole.stores.base import Advance, Batch, Store, StoreEngine, StoreLimits
from keyhole.stores.index_entries import counted, entries_of, place_of
from keyhole.stores.indexed import IndexedStore
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.stores.pieces import apply_pieces
from keyhole.stores.rocksdb.engine import RocksdbEngine
from keyhole.v1 import state_server_pb2 as pb
from keyhole.verify.fetched_copies import Server
from keyhole.verify.verify import Verdict, verify
from services.state_server.read.dump import dump
from services.state_server.read.table import Table
from tests.support.applications import Application
from tests.support.states import KEY_GROUPS, descriptor, key, names_in, standing, table

NAMES = names_in(1, 5)
NUMBERS: dict[str, float | None] = dict(zip(NAMES, (1.0, 2.0, 2.0, 3.0, None), strict=True))
SERVER = Server("server-a", "a:1")


class Copy:
    """A server's copy of all that the application has, in a store with an index of n."""

    def __init__(self, engine: StoreEngine, of: StateDescriptor | None = None) -> None:
        self.application = Application(of=of or descriptor(index=("n",)))
        self.application.run(3, NUMBERS | {names_in(0)[0]: 7.0})
        self.of = self.application.of
        self.raw: Store = engine.open("app", "counts", self.of.topic_id)
        self.store = IndexedStore(self.raw, self.of)
        reader = self.application.changelog.reader()
        ends = reader.ends({self.of.state: range(KEY_GROUPS)}, 1)
        apply_pieces(self.store, {}, reader.read(dict.fromkeys(ends, START), ends, 1))
        reader.close()
        self.table: Table = table(self.of, self.store)
        self.table.publish(self.store.snapshot(), frozenset(range(KEY_GROUPS)), standing(3), {})

    def entry(self, name: str, n: float) -> tuple[bytes, bytes]:
        (of,) = indexed_fields(self.of)
        group, rest = group_of(key(name)), key(name)[2:]
        return entries_of(place_of(group, of.id), [(of.encode(n), rest)], 511)[0]

    def change(self, puts: Collection[tuple[bytes, bytes]] = (), deletes: Collection[bytes] = ()) -> None:
        """Behind the index's back."""
        snapshot = self.raw.snapshot()
        at = snapshot.positions()
        snapshot.close()
        groups = {group_of(of) for of in (*deletes, *(of for of, _ in puts))}
        advances = {group: Advance(at[group], at[group]) for group in groups}
        self.raw.apply(Batch(sorted(puts), sorted(deletes), advances))

    def verified(self, of: StateDescriptor | None = None) -> Verdict:
        def dumped(_: Server, key_groups: Collection[int]) -> Iterator[pb.DumpChunk]:
            return dump(self.table, frozenset(key_groups))

        changelog = self.application.changelog
        return verify(of or self.of, [SERVER], changelog, dumped, deadline_seconds=1, pause_seconds=0)


@pytest.fixture(params=["memory", "lmdb", "rocksdb"])
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Copy]:
    engines = {"memory": lambda _: MemoryEngine(), "lmdb": LmdbEngine, "rocksdb": RocksdbEngine}
    engine: StoreEngine = engines[request.param](StoreLimits(tmp_path, 1 << 26))
    made = Copy(engine)
    yield made
    made.table.close()
    engine.close()


def test_an_entry_without_its_row_and_a_row_without_its_entry_are_found_and_told(copy: Copy) -> None:
    verdict = copy.verified()
    assert not verdict.findings
    (compared,) = copy_rows(verdict)
    assert (compared["indexes"], compared["all_indexes"], compared["differing"]) == (2, KEY_GROUPS, 0)
    assert {copied.key_group for copied, of in verdict.indexes.items() if of.compared} == {0, 1}

    lost, of_before, of_nobody = copy.entry(NAMES[0], 1.0), copy.entry(NAMES[1], -5.0), copy.entry(NAMES[4], 9.0)
    miscounted = (place_of(0, indexed_fields(copy.of)[0].id), counted(2))
    copy.change([of_before, of_nobody, miscounted], [lost[0]])
    verdict = copy.verified()
    first, second = sorted(verdict.findings, key=lambda finding: finding.copy.key_group)
    assert not any(finding.differences or finding.ahead for finding in (first, second))
    (of_count,), (of_entries,) = first.indexes.values(), second.indexes.values()
    assert (of_count.missing, of_count.extra, of_count.different) == ([], [], [miscounted[0]])
    assert (of_entries.missing, of_entries.different) == ([lost[0]], [])
    assert of_entries.extra == sorted([of_before[0], of_nobody[0]])
    rows = difference_rows(verdict, 1)
    kinds = ("key_group", "index", "missing", "extra", "different", "keys")
    assert [[row[kind] for kind in kinds] for row in rows] == [
        [0, "n", 0, 0, 1, {"different": [miscounted[0].hex()]}],
        [1, "n", 1, 2, 0, {"missing": [lost[0].hex()], "extra": [of_before[0].hex()]}],
    ]
    assert copy_rows(verdict)[0]["differing"] == 2

    copy.change([lost, (miscounted[0], counted(1))], [of_before[0], of_nobody[0]])
    assert not copy.verified().findings


def test_rows_that_are_gone_are_told_apart_from_entries_that_are(copy: Copy) -> None:
    """The index is held against the copy's rows, not against the changelog."""
    copy.change(deletes=[key(NAMES[3])])
    verdict = copy.verified()
    (finding,) = verdict.findings
    assert finding.differences.missing == [key(NAMES[3])]
    assert finding.indexes["n"].extra == [copy.entry(NAMES[3], 3.0)[0]]
    assert [row["index"] for row in difference_rows(verdict, 0)] == ["", "n"]


def test_an_index_that_is_not_whole_or_that_is_not_known_is_not_compared() -> None:
    copy = Copy(MemoryEngine())
    # What says that it is whole goes: as while it is built.
    copy.change(deletes=[place_of(1, indexed_fields(copy.of)[0].id), copy.entry(NAMES[0], 1.0)[0]])
    verdict = copy.verified()
    assert (verdict.findings, copy_rows(verdict)[0]["indexes"]) == ((), 1)
    assert not copy.verified(msgspec.structs.replace(copy.of, index=())).findings
    # The control topic's descriptor may be older than the server's, for a moment.
    other = msgspec.structs.replace(copy.of, value=ValueSchema(1, (ValueField("m", "int"),)), index=("m",))
    verdict = copy.verified(other)
    assert (verdict.findings, copy_rows(verdict)[0]["indexes"]) == ((), 0)


def test_indexes_of_rows_that_cannot_be_read_are_named_and_the_rows_are_compared() -> None:
    copy = Copy(MemoryEngine())
    copy.change([(key(NAMES[0]), encode_row(2, [1.0]))])
    verdict = copy.verified()
    ((unread, why),) = verdict.unread_indexes.items()
    assert (unread.server, unread.key_group) == (SERVER, 1)
    assert "of no schema" in why
    (finding,) = verdict.findings
    assert (finding.differences.different, finding.indexes) == ([key(NAMES[0])], {})


def test_nothing_of_indexes_is_sent_of_a_state_that_has_none() -> None:
    copy = Copy(MemoryEngine(), descriptor())
    verdict = copy.verified()
    assert not any(chunk.index_keys for chunk in dump(copy.table, frozenset()))
    assert "indexes" not in copy_rows(verdict)[0]
