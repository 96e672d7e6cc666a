"""What every store engine must do, run by each of them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keyhole.errors import InternalError, KeyTooLong, NotReady, StoreConflict, StoreFull, StoreLocked
from keyhole.stores.base import Advance, Batch, Store, StoreEngine, StoreLimits
from keyhole.stores.lmdb import LmdbEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.types import START, Position

LIMIT_BYTES = 1 << 30
SMALL_LIMIT_BYTES = 1 << 20
LAST_KEY_GROUP = 65_535

MakeEngine = Callable[[int], StoreEngine]


@pytest.fixture(params=["memory", "lmdb"])
def make_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeEngine]:
    """Makes an engine with a limit in bytes; each in a directory of its own."""
    engines: list[StoreEngine] = []
    numbers = itertools.count()

    def make(limit_bytes: int) -> StoreEngine:
        engine: StoreEngine
        if request.param == "memory":
            engine = MemoryEngine(limit_bytes)
        else:
            engine = LmdbEngine(StoreLimits(tmp_path / str(next(numbers)), limit_bytes))
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(make_engine: MakeEngine) -> StoreEngine:
    return make_engine(LIMIT_BYTES)


@pytest.fixture
def store(engine: StoreEngine) -> Store:
    return engine.open("application", "state", "topic")


def key(key_group: int, name: str = "") -> bytes:
    return key_group.to_bytes(2, "big") + name.encode()


def position(epoch: int) -> Position:
    return Position(epoch * 10, epoch, 1, 2**64 - epoch, 1_700_000_000_000 + epoch, 0)


def advances(*key_groups: int, epoch: int = 1) -> dict[int, Advance]:
    before = position(epoch - 1) if epoch > 1 else START
    return {key_group: Advance(before, position(epoch)) for key_group in key_groups}


def contents(store: Store, *key_groups: int) -> dict[bytes, bytes]:
    snapshot = store.snapshot()
    try:
        return {k: row for key_group in key_groups for k, row in snapshot.items(key_group)}
    finally:
        snapshot.close()


def positions(store: Store) -> dict[int, Position]:
    snapshot = store.snapshot()
    try:
        return dict(snapshot.positions())
    finally:
        snapshot.close()


def fill(store: Store, key_group: int) -> None:
    """Puts rows one by one until the store refuses, and checks that all those it took are there."""
    last = START
    for epoch in itertools.count(1):
        batch = Batch([(key(key_group, f"{epoch:06}"), b"x" * 500)], [], {key_group: Advance(last, position(epoch))})
        try:
            store.apply(batch)
        except StoreFull:
            break
        last = position(epoch)
    assert positions(store).get(key_group, START) == last
    assert len(contents(store, key_group)) == last.epoch


def test_a_new_store_is_empty(store: Store) -> None:
    snapshot = store.snapshot()
    assert snapshot.get(key(0, "a")) is None
    assert snapshot.get_many([]) == []
    assert list(snapshot.items(0)) == []
    assert list(snapshot.items(0, descending=True)) == []
    assert snapshot.positions() == {}
    assert store.size().entries == 0


def test_a_batch_puts_deletes_and_advances_together(store: Store) -> None:
    store.apply(Batch([(key(1, "a"), b"1"), (key(1, "b"), b"2"), (key(2, "c"), b"")], [], advances(1, 2)))
    store.apply(Batch([(key(1, "b"), b"20")], [key(1, "a"), key(1, "absent")], advances(1, epoch=2)))

    snapshot = store.snapshot()
    assert snapshot.get(key(1, "b")) == b"20"
    assert snapshot.get_many([key(2, "c"), key(1, "a"), key(1, "b"), key(3, "x"), key(1, "b")]) == [
        b"",
        None,
        b"20",
        None,
        b"20",
    ]
    assert snapshot.positions() == {1: position(2), 2: position(1)}
    assert store.size().entries == 2


def test_a_position_comes_back_field_by_field(store: Store) -> None:
    after = Position(2**62, 2**63, 2**40, 2**64 - 1, 1_700_000_000_123, 1_700_000_000_001)
    store.apply(Batch(advances={LAST_KEY_GROUP: Advance(START, after)}))
    assert positions(store) == {LAST_KEY_GROUP: after}


def test_a_snapshot_stays_as_it_was_while_the_store_goes_on(store: Store) -> None:
    store.apply(Batch([(key(1, "a"), b"1"), (key(1, "b"), b"1")], [], advances(1)))
    snapshot = store.snapshot()
    store.apply(Batch([(key(1, "a"), b"2"), (key(1, "c"), b"2")], [key(1, "b")], advances(1, epoch=2)))
    store.drop_key_group(1)

    assert snapshot.get_many([key(1, "a"), key(1, "b"), key(1, "c")]) == [b"1", b"1", None]
    assert list(snapshot.items(1)) == [(key(1, "a"), b"1"), (key(1, "b"), b"1")]
    assert snapshot.positions() == {1: position(1)}
    snapshot.close()


def test_items_are_ascending_and_only_of_their_key_group(store: Store) -> None:
    names = ["b", "a", "", "ab", "z"]
    puts = sorted((key(group, name), b"row") for group in (0, 1, 255, 256, LAST_KEY_GROUP) for name in names)
    store.apply(Batch(puts, [], advances(0, 1, 255, 256, LAST_KEY_GROUP)))

    snapshot = store.snapshot()
    for group in (0, 1, 255, 256, LAST_KEY_GROUP):
        assert [k for k, _ in snapshot.items(group)] == [key(group, name) for name in sorted(names)]
    assert list(snapshot.items(2)) == []


RANGES = pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (key(1, "b"), None, ["b", "c"]),
        (b"", key(1, "b"), ["a"]),
        (key(1, "a"), key(1, "c"), ["a", "b"]),
        (key(1, "aa"), key(1, "bb"), ["b"]),
        (key(1, "c"), key(1, "a"), []),
        (key(0), key(3), ["a", "b", "c"]),
        (key(2), None, []),
        (b"", key(1), []),
        (b"", b"", []),
        (key(1, "b"), key(1).ljust(600, b"b"), ["b"]),
        (key(1).ljust(600, b"b"), None, ["c"]),
    ],
)


@RANGES
def test_items_begin_at_start_end_before_stop_and_never_leave_the_key_group(
    store: Store, start: bytes, stop: bytes | None, expected: list[str]
) -> None:
    store.apply(Batch([(key(group, name), b"") for group in (0, 1, 2) for name in "abc"], [], advances(0, 1, 2)))
    assert [k for k, _ in store.snapshot().items(1, start, stop)] == [key(1, name) for name in expected]


@RANGES
def test_descending_items_are_the_same_ones_in_reverse(
    store: Store, start: bytes, stop: bytes | None, expected: list[str]
) -> None:
    puts = [(key(group, name), f"{group}{name}".encode()) for group in (0, 1, 2) for name in "abc"]
    store.apply(Batch(puts, [], advances(0, 1, 2)))
    snapshot = store.snapshot()
    assert list(snapshot.items(1, start, stop, descending=True)) == [
        (key(1, name), f"1{name}".encode()) for name in reversed(expected)
    ]


def test_descending_items_begin_at_the_end_of_the_store_s_first_and_last_key_groups(store: Store) -> None:
    store.apply(
        Batch(
            [(key(group, name), b"") for group in (0, LAST_KEY_GROUP) for name in "ab"], [], advances(0, LAST_KEY_GROUP)
        )
    )
    snapshot = store.snapshot()
    for group in (0, LAST_KEY_GROUP):
        assert [k for k, _ in snapshot.items(group, descending=True)] == [key(group, "b"), key(group, "a")]
    assert list(snapshot.items(1, descending=True)) == []
    assert list(snapshot.items(LAST_KEY_GROUP - 1, descending=True)) == []


@pytest.mark.parametrize("stored_epoch", [0, 2])
def test_a_batch_that_does_not_extend_what_is_stored_changes_nothing(store: Store, stored_epoch: int) -> None:
    for epoch in range(1, stored_epoch + 1):
        store.apply(Batch([(key(2, "a"), b"old")], [], advances(2, epoch=epoch)))
    before = positions(store)

    wrong = {**advances(1), 2: Advance(position(1), position(3))}
    with pytest.raises(StoreConflict, match=f"key group 2 is at offset {stored_epoch * 10}, epoch {stored_epoch}"):
        store.apply(Batch([(key(1, "a"), b"new"), (key(2, "a"), b"new")], [], wrong))

    assert positions(store) == before
    assert contents(store, 1, 2) == ({key(2, "a"): b"old"} if stored_epoch else {})
    store.apply(Batch([], [], advances(1)))


def test_every_field_of_a_position_counts_when_a_batch_extends_it(store: Store) -> None:
    stored = Position(1, 2, 3, 4, 5, 6)
    store.apply(Batch(advances={0: Advance(START, stored)}))
    for field in Position._fields:
        other = stored._replace(**{field: 9})
        with pytest.raises(StoreConflict):
            store.apply(Batch(advances={0: Advance(other, position(9))}))
    store.apply(Batch(advances={0: Advance(stored, position(9))}))


def test_the_longest_key_is_taken_and_a_longer_one_is_refused_with_the_limit(store: Store) -> None:
    longest = key(1).ljust(store.max_key_bytes, b"k")
    store.apply(Batch([(longest, b"row")], [], advances(1)))

    for batch in (
        Batch([(key(1, "a"), b""), (longest + b"k", b"")], [], advances(1, epoch=2)),
        Batch([(key(1, "a"), b"")], [longest + b"k"], advances(1, epoch=2)),
    ):
        with pytest.raises(KeyTooLong, match=f"{store.max_key_bytes + 1} bytes, and this store takes") as refused:
            store.apply(batch)
        assert "kkk" not in str(refused.value)

    assert contents(store, 1) == {longest: b"row"}
    assert positions(store) == {1: position(1)}
    assert store.snapshot().get_many([longest, longest + b"k"]) == [b"row", None]


def test_a_batch_that_writes_to_a_key_group_it_does_not_advance_is_refused(store: Store) -> None:
    for batch in (Batch([(key(1, "a"), b"")], [], advances(2)), Batch([], [key(1, "a")], advances(2))):
        with pytest.raises(InternalError, match=r"key groups \[1\]"):
            store.apply(batch)
    assert positions(store) == {}


def test_dropping_a_key_group_removes_its_entries_and_position_and_no_others(store: Store) -> None:
    puts = [(key(group, name), b"row") for group in (0, 1, 2, LAST_KEY_GROUP) for name in "abc"]
    store.apply(Batch(puts, [], advances(0, 1, 2, LAST_KEY_GROUP)))

    store.drop_key_group(1)
    store.drop_key_group(LAST_KEY_GROUP)
    store.drop_key_group(7)

    assert set(contents(store, 0, 1, 2, LAST_KEY_GROUP)) == {key(group, name) for group in (0, 2) for name in "abc"}
    assert set(positions(store)) == {0, 2}
    assert store.size().entries == 6
    store.apply(Batch([(key(1, "a"), b"again")], [], advances(1)))
    assert contents(store, 1) == {key(1, "a"): b"again"}


def test_a_full_store_says_so_loses_nothing_and_goes_on(make_engine: MakeEngine) -> None:
    store = make_engine(SMALL_LIMIT_BYTES).open("application", "state", "topic")
    store.apply(Batch([(key(1, f"{i:03}"), b"x" * 1000) for i in range(100)], [], advances(1)))
    before = contents(store, 1)

    big = [(key(1, f"{i:05}"), b"y" * 1000) for i in range(2000)]
    for _ in range(3):
        with pytest.raises(StoreFull, match=f"{SMALL_LIMIT_BYTES}.*KEYHOLE_STATE_SERVER_STORE_LIMIT_BYTES"):
            store.apply(Batch(big, [key(1, "000")], advances(1, epoch=2)))
        assert contents(store, 1) == before
        assert positions(store) == {1: position(1)}

    store.apply(Batch([(key(1, "050"), b"z")], [key(1, "000")], advances(1, epoch=2)))
    expected = {**before, key(1, "050"): b"z"}
    del expected[key(1, "000")]
    assert contents(store, 1) == expected


def test_a_store_that_was_filled_to_the_brim_can_still_drop_a_key_group(make_engine: MakeEngine) -> None:
    store = make_engine(SMALL_LIMIT_BYTES).open("application", "state", "topic")
    store.apply(Batch([(key(2, f"{i:03}"), b"x" * 500) for i in range(200)], [], advances(2)))
    fill(store, 1)

    store.apply(Batch([], list(contents(store, 2)), advances(2, epoch=2)))
    assert contents(store, 2) == {}
    store.drop_key_group(1)
    store.apply(Batch([(key(1, "a"), b"row")], [], advances(1)))
    assert contents(store, 1) == {key(1, "a"): b"row"}


def test_a_store_that_is_opened_again_holds_what_it_held(engine: StoreEngine) -> None:
    store = engine.open("application", "state", "topic")
    store.apply(Batch([(key(1, "a"), b"1")], [], advances(1)))
    store.close()
    store.close()

    again = engine.open("application", "state", "topic")
    assert contents(again, 1) == {key(1, "a"): b"1"}
    assert positions(again) == {1: position(1)}
    again.apply(Batch([(key(1, "a"), b"2")], [], advances(1, epoch=2)))
    assert contents(again, 1) == {key(1, "a"): b"2"}


def test_a_store_of_another_topic_is_emptied(engine: StoreEngine) -> None:
    store = engine.open("application", "state", "topic")
    store.apply(Batch([(key(1, "a"), b"1")], [], advances(1)))
    store.close()

    again = engine.open("application", "state", "another topic")
    assert contents(again, 1) == {}
    assert positions(again) == {}


def test_stores_of_different_names_are_apart_whatever_the_names(engine: StoreEngine) -> None:
    names = [("a", "bc"), ("ab", "c"), ("A", "bc"), ("", ""), ("..", "/etc"), ("ä" * 300, "\ud800\n"), ("a.b", "c")]
    stores = {name: engine.open(*name, "topic") for name in names}
    for number, store in enumerate(stores.values()):
        store.apply(Batch([(key(1, "a"), str(number).encode())], [], advances(1)))
    for number, store in enumerate(stores.values()):
        assert contents(store, 1) == {key(1, "a"): str(number).encode()}
        store.close()
    engine.destroy("", "")
    assert contents(engine.open("", "", "topic"), 1) == {}
    assert contents(engine.open("..", "/etc", "topic"), 1) == {key(1, "a"): b"4"}


def test_a_state_is_not_opened_twice_and_not_destroyed_while_open(engine: StoreEngine) -> None:
    store = engine.open("application", "state", "topic")
    store.apply(Batch([(key(1, "a"), b"1")], [], advances(1)))
    with pytest.raises(StoreLocked, match="already open"):
        engine.open("application", "state", "topic")
    with pytest.raises(StoreLocked):
        engine.destroy("application", "state")
    assert contents(store, 1) == {key(1, "a"): b"1"}


def test_a_destroyed_store_is_new_when_it_is_opened_again(engine: StoreEngine) -> None:
    store = engine.open("application", "state", "topic")
    store.apply(Batch([(key(1, "a"), b"1")], [], advances(1)))
    store.close()
    engine.destroy("application", "state")
    engine.destroy("application", "state")
    engine.destroy("application", "unknown")

    again = engine.open("application", "state", "topic")
    assert contents(again, 1) == {}
    assert positions(again) == {}


def test_a_closed_store_and_its_snapshots_say_that_they_are_closed(store: Store) -> None:
    store.apply(Batch([(key(1, "a"), b"1"), (key(1, "b"), b"1")], [], advances(1)))
    snapshot = store.snapshot()
    under_way = snapshot.items(1)
    next(under_way)
    down = snapshot.items(1, descending=True)
    next(down)
    store.close()

    uses: list[Callable[[], object]] = [
        lambda: snapshot.get(key(1, "a")),
        lambda: snapshot.get_many([key(1, "a")]),
        lambda: next(snapshot.items(1)),
        lambda: next(under_way),
        lambda: next(snapshot.items(1, descending=True)),
        lambda: next(down),
        snapshot.positions,
        store.snapshot,
        store.size,
        lambda: store.apply(Batch(advances=advances(1, epoch=2))),
        lambda: store.drop_key_group(1),
    ]
    for use in uses:
        with pytest.raises(NotReady):
            use()
    snapshot.close()
    snapshot.close()
    store.close()


def test_a_closed_snapshot_says_so_and_the_store_goes_on(store: Store) -> None:
    store.apply(Batch([(key(1, "a"), b"1")], [], advances(1)))
    snapshot = store.snapshot()
    snapshot.close()
    snapshot.close()
    with pytest.raises(NotReady):
        snapshot.get(key(1, "a"))
    assert contents(store, 1) == {key(1, "a"): b"1"}


def test_readers_on_other_threads_always_see_whole_batches_while_a_writer_goes_on(store: Store) -> None:
    keys = [key(group, f"{i:02}") for group in (1, 2) for i in range(50)]
    done = threading.Event()
    torn: list[str] = []
    seen: list[int] = []

    def read() -> None:
        while not done.is_set():
            snapshot = store.snapshot()
            rows = set(snapshot.get_many(keys))
            epochs = {p.epoch for p in snapshot.positions().values()} or {0}
            expected = {str(epoch).encode() if epoch else None for epoch in epochs}
            if len(rows) != 1 or rows != expected:
                torn.append(f"{len(rows)} versions at epochs {epochs}")
            seen.append(max(epochs))
            snapshot.close()

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for epoch in range(1, 101):
        store.apply(Batch([(k, str(epoch).encode()) for k in keys], [], advances(1, 2, epoch=epoch)))
    done.set()
    for reader in readers:
        reader.join()
    assert torn == []
    assert seen


def test_a_snapshot_taken_on_one_thread_can_be_read_and_closed_on_another(store: Store) -> None:
    store.apply(Batch([(key(1, "a"), b"1")], [], advances(1)))
    snapshot = store.snapshot()
    found: list[bytes | None] = []

    def read() -> None:
        found.append(snapshot.get(key(1, "a")))
        snapshot.close()

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert found == [b"1"]


def test_a_store_that_is_closed_under_its_readers_only_makes_them_fail(store: Store) -> None:
    keys = [key(1, f"{i:03}") for i in range(500)]
    store.apply(Batch([(k, b"row") for k in keys], [], advances(1)))
    started = threading.Barrier(3)
    wrong: list[object] = []

    def read() -> None:
        snapshot = store.snapshot()
        started.wait()
        try:
            while True:
                if set(snapshot.get_many(keys)) != {b"row"}:
                    wrong.append("rows are missing")
                    return
        except NotReady:
            pass

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    started.wait()
    store.close()
    for reader in readers:
        reader.join()
    assert wrong == []


def test_the_size_grows_with_what_is_stored(store: Store) -> None:
    before = store.size()
    store.apply(Batch([(key(1, f"{i:04}"), b"x" * 1000) for i in range(1000)], [], advances(1)))
    after = store.size()
    assert after.entries == 1000
    assert 1_000_000 < after.bytes - before.bytes < 4_000_000
