"""What an append costs does not depend on how long the list is: counted in what is read of the store, and written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from keyhole.codec import StateCodec, encode_integer
from keyhole.stored import Moment
from keyhole.stores.base import Advance, Batch, Snapshot
from keyhole.stores.memory import MemoryEngine
from keyhole.types import START, Position, StateDescriptor, StateKind
from services.state_server.merge import changes, merge_of
from services.state_server.merging import Epoch
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


def list_of(length: int, **changed: object) -> tuple[StateDescriptor, Snapshot]:
    of = descriptor(kind=StateKind.LIST, **changed)
    prefix, stamp = StateCodec(of).prefix(NAME), (1 << 62).to_bytes(8, "big") if of.ttl_ms else b""
    store = MemoryEngine().open("app", "counts", "topic")
    puts = [(prefix + encode_integer(at, 8), stamp + row(1.0)) for at in range(length)]
    store.apply(Batch(puts, advances={0: Advance(START, Position(1, 1, 1, 0))}))
    return of, store.snapshot()


def read_and_written(length: int, **changed: object) -> tuple[int, int]:
    of, snapshot = list_of(length, **changed)
    counting = Counting(snapshot)
    rows = {StateCodec(of).prefix(NAME) + encode_integer(at, 8): row(2.0) for at in range(NEW)}
    epoch = Epoch(2, Moment(1, 1), Moment(1, 1))
    written = changes(rows, counting, 0, merge_of(of), epoch, replace=False)  # type: ignore[arg-type]
    assert [name for name, value in written if value is not None] == [
        StateCodec(of).prefix(NAME) + encode_integer(length + at, 8) for at in range(NEW)
    ]
    return counting.read, len(written)


@pytest.mark.parametrize("changed", [{}, {"ttl_ms": 1000}], ids=["plain", "with a ttl"])
def test_an_append_reads_the_last_element_alone_and_writes_the_new_ones(changed: dict[str, object]) -> None:
    assert [read_and_written(length, **changed) for length in LENGTHS] == [(1, NEW)] * 2


@pytest.mark.parametrize("ttl", [{}, {"ttl_ms": 1000}], ids=["plain", "with a ttl"])
def test_of_a_list_at_its_maximum_as_many_are_read_and_deleted_as_are_new(ttl: dict[str, object]) -> None:
    costs = [read_and_written(length, max_length=length, **ttl) for length in LENGTHS]
    assert costs == [(1 + NEW, 2 * NEW)] * 2
