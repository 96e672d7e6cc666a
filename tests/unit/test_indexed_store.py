"""What a store keeps of its indexes: with each write, over restarts, while one is built, and where none can be."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from keyhole.encoding.envelope import Aggregate, Lifetime, Moment
from keyhole.encoding.index_ranges import ValueRange
from keyhole.encoding.indexed_fields import indexed_fields
from keyhole.encoding.row_codec import encode_row
from keyhole.encoding.storage_key import prefix_of
from keyhole.errors import StoreFull
from keyhole.model.epoch import START, Position
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, TtlClock, ValueField, ValueSchema
from keyhole.stores.base import Advance, Batch, Snapshot
from keyhole.stores.index_entries import keys_in, rows_counted
from keyhole.stores.indexed import IndexedStore
from keyhole.stores.memory import MemoryEngine, MemoryStore

FIRST = ValueSchema(1, (ValueField("n", "int"),))
SECOND = ValueSchema(2, (ValueField("n", "int"), ValueField("m", "int")))
KEY = (KeyColumn("k", KeyType.STRING),)
PLAIN = StateDescriptor("app", "state", "main", StateKind.VALUE, 4, KEY, FIRST, topic_id="topic")
BY_N = msgspec.structs.replace(PLAIN, index=("n",))
GROUP = 2


class Writer:
    """Writes to the key group, epoch by epoch."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.position = START

    def opened(self, of: StateDescriptor, build_entries: int = 2) -> IndexedStore:
        self.raw = self.engine.open("app", "state", "topic")
        self.store = IndexedStore(self.raw, of, build_entries)
        return self.store

    def write(self, rows: Mapping[str, int | None], to: IndexedStore | MemoryStore | None = None) -> None:
        """None deletes."""
        epoch = self.position.epoch + 1
        after = Position(epoch, epoch, 1, 0, 1)
        puts = sorted((key(name), encode_row(1, [n])) for name, n in rows.items() if n is not None)
        gone = sorted(key(name) for name, n in rows.items() if n is None)
        (to or self.store).apply(Batch(puts, gone, {GROUP: Advance(self.position, after)}))
        self.position = after


def key(name: str) -> bytes:
    return prefix_of(GROUP) + name.encode()


def found(snapshot: Snapshot, first: int, last: int | None = None, of: StateDescriptor = BY_N) -> list[str] | None:
    """The rows whose n is from the first to the last, by n; None: the index must not be asked."""
    (n,) = indexed_fields(of)
    if rows_counted(snapshot, GROUP, n.id) is None:
        return None
    values = ValueRange(n.encode(first), n.encode((first if last is None else last) + 1))
    return [of[2:].decode() for of in keys_in(snapshot, GROUP, n.id, values)]


def rows(snapshot: Snapshot) -> int | None:
    return rows_counted(snapshot, GROUP, indexed_fields(BY_N)[0].id)


def finished(store: IndexedStore) -> None:
    while store.build():
        pass


def test_each_write_keeps_it_and_each_snapshot_has_the_one_of_its_moment() -> None:
    writer = Writer()
    store = writer.opened(BY_N)
    writer.write({"a": 1, "b": 1, "c": 3})
    before = store.snapshot()
    writer.write({"a": 3, "b": None, "d": 1, "absent": None})
    after = store.snapshot()
    assert (found(before, 1), found(before, 3), rows(before)) == (["a", "b"], ["c"], 3)
    assert (found(after, 1), found(after, 3), rows(after)) == (["d"], ["a", "c"], 3)
    assert found(after, 0, 5) == ["d", "a", "c"]
    assert dict(after.positions()) == {GROUP: writer.position}
    assert store.size().entries == 3
    assert writer.raw.size().entries == 3 + 3 + 1
    store.drop_key_group(GROUP)
    assert writer.raw.size().entries == 0
    assert found(store.snapshot(), 1) is None


def test_what_stands_around_a_row_is_passed_over() -> None:
    of = msgspec.structs.replace(BY_N, kind=StateKind.AGGREGATING, ttl_ms=1000)
    writer = Writer()
    store = writer.opened(of)
    expired = Lifetime(1000, TtlClock.PROCESSING_TIME).entries(Moment(1, 0))
    entries = [(key(name), expired(Aggregate(1, encode_row(1, [n]), b"sum", None).encode())) for name, n in [("a", 7)]]
    store.apply(Batch(entries, [], {GROUP: Advance(START, Position(1, 1, 1, 0, 1))}))
    assert found(store.snapshot(), 7, of=of) == ["a"]


def test_one_that_is_added_is_asked_once_it_is_whole_whatever_is_written_meanwhile() -> None:
    writer = Writer()
    store = writer.opened(PLAIN)
    writer.write({"a": 1, "b": 1, "c": 1, "d": 1, "e": 1})
    assert not store.has_entries
    store.declare(BY_N)
    assert store.build()
    # Before and behind the place up to which it is built.
    writer.write({"a": 2, "b": None, "d": 2, "aa": 1, "f": 1})
    assert found(store.snapshot(), 1) is None
    finished(store)
    assert found(store.snapshot(), 1, 2) == ["aa", "c", "e", "f", "a", "d"]
    assert rows(store.snapshot()) == 6
    assert store.size().entries == 6


def test_what_is_half_built_goes_on_where_the_state_is_declared_with_another_field() -> None:
    steps = []
    for again in (None, msgspec.structs.replace(BY_N, value=SECOND, earlier=(FIRST,))):
        writer = Writer()
        store = writer.opened(PLAIN)
        writer.write(dict.fromkeys("abcdefgh", 1))
        store.declare(BY_N)
        assert store.build()
        if again is not None:
            store.declare(again)
        steps.append(1)
        while store.build():
            steps[-1] += 1
        assert found(store.snapshot(), 1) == list("abcdefgh")
    assert steps[0] == steps[1]


def test_one_that_is_removed_is_not_asked_any_more_and_goes() -> None:
    writer = Writer()
    store = writer.opened(BY_N)
    writer.write({"a": 1, "b": 1, "c": 1})
    kept = store.snapshot()
    store.declare(PLAIN)
    writer.write({"a": 2})
    assert found(store.snapshot(), 1) is None
    assert found(kept, 1) == ["a", "b", "c"]
    assert store.build()
    # Declared again before all of it is gone: what is left is of no use.
    store.declare(BY_N)
    assert found(store.snapshot(), 1) is None
    finished(store)
    assert found(store.snapshot(), 1, 2) == ["b", "c", "a"]
    store.declare(PLAIN)
    finished(store)
    assert writer.raw.size().entries == 3
    assert not store.has_entries


def test_a_crash_in_the_middle_begins_anew_and_what_another_release_writes_is_noticed() -> None:
    writer = Writer()
    store = writer.opened(PLAIN)
    writer.write({"a": 1, "b": 1, "c": 1})
    store.declare(BY_N)
    store.build()
    store.close()
    store = writer.opened(BY_N)
    # Of what is not kept yet an entry was left.
    writer.write({"a": 2})
    finished(store)
    assert found(store.snapshot(), 1, 2) == ["b", "c", "a"]
    store.close()
    assert found(writer.opened(BY_N).snapshot(), 1, 2) == ["b", "c", "a"]
    writer.write({"b": 2}, to=writer.raw)
    writer.store.close()
    store = writer.opened(BY_N)
    assert found(store.snapshot(), 1, 2) is None
    finished(store)
    assert found(store.snapshot(), 1, 2) == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("name", "stored", "says"),
    [
        ("k" * 505, encode_row(1, [1]), "a key is too long"),
        ("k", encode_row(2, [1, 2]), "a row is of no schema that is known here"),
    ],
)
def test_a_key_group_that_can_not_keep_it_gives_it_up_until_the_state_is_declared_anew(
    name: str, stored: bytes, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer()
    store = writer.opened(BY_N)
    writer.write({"a": 1})
    after = Position(9, 9, 1, 0, 1)
    with caplog.at_level(logging.WARNING):
        store.apply(Batch([(key(name), stored)], [], {GROUP: Advance(writer.position, after)}))
    assert [record.__dict__["why"] for record in caplog.records] == [says]
    writer.position = after
    assert store.snapshot().get(key(name)) == stored
    writer.write({"b": 1})
    finished(store)
    assert found(store.snapshot(), 1) is None
    newer = msgspec.structs.replace(BY_N, value=SECOND, earlier=(FIRST,))
    writer.write({name: None} if len(name) > 1 else {})
    store.declare(newer)
    finished(store)
    rows_left: Sequence[str] = ["a", "b"] if len(name) > 1 else ["a", "b", "k"]
    assert found(store.snapshot(), 1, of=newer) == rows_left


def test_an_index_that_could_not_be_removed_is_not_asked_once_a_row_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer()
    store = writer.opened(BY_N)
    writer.write({"a": 1})

    def full(_: Batch) -> None:
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(writer.raw, "apply", full)
        with pytest.raises(StoreFull):
            store.declare(PLAIN)
    assert found(store.snapshot(), 1) == ["a"]
    writer.write({"a": 2})
    assert found(store.snapshot(), 1) is None
    finished(store)
    assert writer.raw.size().entries == 1


def test_a_write_that_fails_leaves_it_as_it_was_and_the_next_one_goes_on() -> None:
    writer = Writer()
    store = writer.opened(BY_N)
    writer.write({"a": 1})
    writer.raw.limit_bytes = 0
    with pytest.raises(StoreFull):
        writer.write({"b": 1})
    writer.raw.limit_bytes = 1 << 20
    assert found(store.snapshot(), 1) == ["a"]
    writer.write({"c": 1})
    assert found(store.snapshot(), 1) == ["a", "c"]
