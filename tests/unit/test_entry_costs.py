"""What a change of one entry costs does not depend on how many a key has: counted in what is read, and written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.envelope import Moment
from keyhole.encoding.key_codec import encode_integer
from keyhole.model.epoch import START, Position
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind
from keyhole.stores.base import Advance, Batch, Snapshot
from keyhole.stores.memory import MemoryEngine
from services.state_server.write.merge import changes, merge_of
from services.state_server.write.merging import CommitContext, EntryChange, StoredValues
from tests.support.states import descriptor, names_in, row

NAME = names_in(0)[0]
LENGTHS = (10, 100_000)
NEW = 3


class Counting:
    """A snapshot that counts the entries that are read of it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.read = 0

    def get_many(self, storage_keys: Sequence[bytes]) -> list[bytes | None]:
        self.read += len(storage_keys)
        return self._snapshot.get_many(storage_keys)

    def items(
        self, key_group: int, start: bytes = b"", stop: bytes | None = None, *, descending: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for item in self._snapshot.items(key_group, start, stop, descending=descending):
            self.read += 1
            yield item


def holding(of: StateDescriptor, length: int) -> Counting:
    """So many entries of one key, at 0, 1, ..."""
    prefix, stamp = StateCodec(of).prefix(NAME), (1 << 62).to_bytes(8, "big") if of.ttl_ms else b""
    store = MemoryEngine().open("app", "counts", "topic")
    puts = [(prefix + encode_integer(at, 8), stamp + row(1.0)) for at in range(length)]
    store.apply(Batch(puts, advances={0: Advance(START, Position(1, 1, 1, 0))}))
    return Counting(store.snapshot())


def written_by(of: StateDescriptor, snapshot: Counting, rows: StoredValues) -> list[EntryChange]:
    context = CommitContext(2, Moment(1, 1), Moment(1, 1))
    return changes(rows, snapshot, 0, merge_of(of), context, replace=False)  # type: ignore[arg-type]


def read_and_written(length: int, **changed: object) -> tuple[int, int]:
    of = descriptor(kind=StateKind.LIST, **changed)
    counting, prefix = holding(of, length), StateCodec(of).prefix(NAME)
    written = written_by(of, counting, {prefix + encode_integer(at, 8): row(2.0) for at in range(NEW)})
    assert [name for name, value in written if value is not None] == [
        prefix + encode_integer(length + at, 8) for at in range(NEW)
    ]
    return counting.read, len(written)


@pytest.mark.parametrize("changed", [{}, {"ttl_ms": 1000}], ids=["plain", "with a ttl"])
def test_an_append_reads_the_last_element_alone_and_writes_the_new_ones(changed: dict[str, object]) -> None:
    assert [read_and_written(length, **changed) for length in LENGTHS] == [(1, NEW)] * 2


@pytest.mark.parametrize("ttl", [{}, {"ttl_ms": 1000}], ids=["plain", "with a ttl"])
def test_of_a_list_at_its_maximum_as_many_are_read_and_deleted_as_are_new(ttl: dict[str, object]) -> None:
    costs = [read_and_written(length, max_length=length, **ttl) for length in LENGTHS]
    assert costs == [(1 + NEW, 2 * NEW)] * 2


@pytest.mark.parametrize(
    ("changed", "read"), [({}, 0), ({"ttl_ms": 1000}, 0), ({"order_by": "n"}, 3)], ids=["plain", "with a ttl", "ranked"]
)
def test_a_put_and_a_removal_touch_one_entry_of_a_map_each(changed: dict[str, object], read: int) -> None:
    """Ranked: entries are compared with the stored ones, and with what has cleared their key."""
    of = descriptor(kind=StateKind.MAP, map_key=(KeyColumn("m", KeyType.BIGINT),), **changed)
    prefix, longest = StateCodec(of).prefix(NAME), LENGTHS[-1]
    put, removed = prefix + encode_integer(longest // 2, 8), prefix + encode_integer(longest - 1, 8)
    for length in LENGTHS:
        snapshot = holding(of, length)
        written = dict(written_by(of, snapshot, {put: row(2.0), removed: None}))
        assert (snapshot.read, written.keys(), written[removed]) == (read, {put, removed}, None)
