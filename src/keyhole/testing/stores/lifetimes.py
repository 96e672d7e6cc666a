"""How stores are opened, closed, destroyed and filled, and what readers on other threads see of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from keyhole.errors import NotReady, StoreFull, StoreLocked
from keyhole.stores.base import Batch, Store, StoreEngine
from keyhole.testing.stores.samples import advances, contents, fill, key, position, positions, puts

SMALL_LIMIT_BYTES = 1 << 20

MakeEngine = Callable[[int], StoreEngine]


class LifetimesContract:
    """The part of StoreContract about engines, room and threads."""

    def test_a_full_store_says_so_loses_nothing_and_goes_on(self, make: MakeEngine) -> None:
        store = make(SMALL_LIMIT_BYTES).open("application", "state", "topic")
        some, many = puts(1, 100, row_bytes=1000), puts(1, 2000, row_bytes=1000)
        store.apply(Batch(some, [], advances(1)))
        before = contents(store, 1)

        for _ in range(3):
            with pytest.raises(StoreFull, match=str(SMALL_LIMIT_BYTES)):
                store.apply(Batch(many[1:], [many[0][0]], advances(1, epoch=2)))
            assert contents(store, 1) == before
            assert positions(store) == {1: position(1)}

        (first, _), (second, _) = some[:2]
        store.apply(Batch([(second, b"z")], [first], advances(1, epoch=2)))
        assert contents(store, 1) == {second: b"z", **dict(some[2:])}

    def test_a_store_that_was_filled_to_the_brim_can_still_drop_a_key_group(self, make: MakeEngine) -> None:
        store = make(SMALL_LIMIT_BYTES).open("application", "state", "topic")
        store.apply(Batch(puts(2, 200, row_bytes=500), [], advances(2)))
        fill(store, 1)

        store.apply(Batch([], list(contents(store, 2)), advances(2, epoch=2)))
        assert contents(store, 2) == {}
        store.drop_key_group(1)
        store.apply(Batch([(key(1, "a"), b"row")], [], advances(1)))
        assert contents(store, 1) == {key(1, "a"): b"row"}

    def test_a_store_that_is_opened_again_holds_what_it_held(self, engine: StoreEngine) -> None:
        store = engine.open("application", "state", "topic")
        store.apply(Batch([(key(1, "a"), b"1")], [], advances(1)))
        store.close()
        store.close()

        again = engine.open("application", "state", "topic")
        assert contents(again, 1) == {key(1, "a"): b"1"}
        assert positions(again) == {1: position(1)}
        again.apply(Batch([(key(1, "a"), b"2")], [], advances(1, epoch=2)))
        assert contents(again, 1) == {key(1, "a"): b"2"}

    def test_a_store_of_another_topic_is_emptied(self, engine: StoreEngine) -> None:
        store = engine.open("application", "state", "topic")
        store.apply(Batch([(key(1, "a"), b"1")], [], advances(1)))
        store.close()

        again = engine.open("application", "state", "another topic")
        assert contents(again, 1) == {}
        assert positions(again) == {}

    def test_stores_of_different_names_are_apart_whatever_the_names(self, engine: StoreEngine) -> None:
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

    def test_a_state_is_not_opened_twice_and_not_destroyed_while_open(self, engine: StoreEngine) -> None:
        store = engine.open("application", "state", "topic")
        store.apply(Batch([(key(1, "a"), b"1")], [], advances(1)))
        with pytest.raises(StoreLocked, match="already open"):
            engine.open("application", "state", "topic")
        with pytest.raises(StoreLocked):
            engine.destroy("application", "state")
        assert contents(store, 1) == {key(1, "a"): b"1"}

    def test_a_destroyed_store_is_new_when_it_is_opened_again(self, engine: StoreEngine) -> None:
        store = engine.open("application", "state", "topic")
        store.apply(Batch([(key(1, "a"), b"1")], [], advances(1)))
        store.close()
        engine.destroy("application", "state")
        engine.destroy("application", "state")
        engine.destroy("application", "unknown")

        again = engine.open("application", "state", "topic")
        assert contents(again, 1) == {}
        assert positions(again) == {}

    def test_a_closed_store_and_its_snapshots_say_that_they_are_closed(self, store: Store) -> None:
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

    def test_a_closed_snapshot_says_so_and_the_store_goes_on(self, store: Store) -> None:
        store.apply(Batch([(key(1, "a"), b"1")], [], advances(1)))
        snapshot = store.snapshot()
        snapshot.close()
        snapshot.close()
        with pytest.raises(NotReady):
            snapshot.get(key(1, "a"))
        assert contents(store, 1) == {key(1, "a"): b"1"}

    def test_readers_on_other_threads_always_see_whole_batches_while_a_writer_goes_on(self, store: Store) -> None:
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

    def test_a_snapshot_taken_on_one_thread_can_be_read_and_closed_on_another(self, store: Store) -> None:
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

    def test_a_store_that_is_closed_under_its_readers_only_makes_them_fail(self, store: Store) -> None:
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

    def test_the_size_grows_with_what_is_stored(self, store: Store) -> None:
        before = store.size()
        store.apply(Batch(puts(1, 1000, row_bytes=1000), [], advances(1)))
        after = store.size()
        assert after.entries == 1000
        assert 1_000_000 < after.bytes - before.bytes < 4_000_000
