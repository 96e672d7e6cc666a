"""A store with an overlay over it is read as one dict, whatever is changed, committed and written in between."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.encoding.storage_key import group_of, prefix_of
from keyhole.errors import NotReady
from keyhole.model.epoch import START, Position
from keyhole.stores.base import Advance, Batch, Snapshot, Store, StoreEngine, StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.stores.overlay import Overlay, OverlaySnapshot
from keyhole.testing.stores.machine import KEY_GROUPS, LIMIT_BYTES, Model, rows, storage_keys
from tests.support.examples import examples

Change = tuple[bytes, bytes | None]
CHANGES = st.lists(st.tuples(storage_keys, rows | st.none()), max_size=6)
STEPS = st.lists(st.one_of(CHANGES, st.sampled_from(["begin commit", "written", "snapshot"])), max_size=20)


def memory(_: Path) -> StoreEngine:
    return MemoryEngine()


def lmdb(directory: Path) -> StoreEngine:
    return LmdbEngine(StoreLimits(directory, LIMIT_BYTES))


def write(store: Store, overlay: Overlay) -> None:
    """What a commit does: the rows of the key groups, each with its position."""
    snapshot = store.snapshot()
    before = snapshot.positions()
    snapshot.close()
    changes = [change for group in KEY_GROUPS for change in overlay.of(group)]
    advances = {}
    for group in {group_of(key) for key, _ in changes}:
        was = before.get(group, START)
        advances[group] = Advance(was, Position(was.offset + 1, was.epoch + 1, 1, 0))
    puts = [(key, row) for key, row in changes if row is not None]
    store.apply(Batch(puts, [key for key, row in changes if row is None], advances))


def check(snapshot: Snapshot, entries: dict[bytes, bytes], asked: list[bytes], start: bytes, stop: bytes) -> None:
    assert snapshot.get_many(asked) == [entries.get(key) for key in asked]
    for most in (0, 30, 5_000, 1 << 20):
        found, large = snapshot.get_first(asked, most)
        assert found == [entries.get(key) for key in asked[: len(found)]]
        taken = [len(row) for row in found if row]
        assert len(taken) == 1 if large else sum(taken) <= most
        if len(found) < len(asked) and not large:
            assert sum(taken) + len(entries[asked[len(found)]]) > most
    for group in KEY_GROUPS:
        own = sorted(item for item in entries.items() if item[0].startswith(prefix_of(group)))
        assert list(snapshot.items(group)) == own
        assert list(snapshot.items(group, descending=True)) == own[::-1]
        within = [item for item in own if start <= item[0] < stop]
        assert list(snapshot.items(group, start, stop)) == within
        assert list(snapshot.items(group, start, stop, descending=True)) == within[::-1]


@pytest.mark.parametrize("engine", [memory, lmdb])
@settings(max_examples=examples(60), deadline=None)
@given(steps=STEPS, bounds=st.tuples(storage_keys, storage_keys))
def test_an_overlaid_store_equals_a_dict(
    engine: Callable[[Path], StoreEngine], steps: list[list[Change] | str], bounds: tuple[bytes, bytes]
) -> None:
    start, stop = min(bounds), max(bounds)
    asked = sorted({key for step in steps if isinstance(step, list) for key, _ in step} | {*bounds})
    with tempfile.TemporaryDirectory() as directory, ExitStack() as closing:
        made = engine(Path(directory) / "stores")
        closing.callback(made.close)
        store = made.open("application", "state", "topic")
        overlay, model = Overlay(), Model()
        committing: Overlay | None = None
        seen: list[tuple[Snapshot, dict[bytes, bytes]]] = []
        for step in steps:
            if step == "begin commit":
                committing = overlay
            elif step == "written" and committing is not None:
                write(store, committing)
                overlay, committing = overlay.without(committing, KEY_GROUPS), None
            elif step == "snapshot":
                seen.append((OverlaySnapshot(store.snapshot(), overlay), dict(model.entries)))
            elif isinstance(step, list):
                overlay = overlay.changed(step)
                for key, row in step:
                    model.entries.pop(key, None)
                    if row is not None:
                        model.entries[key] = row
            held = [len(key) + len(row or b"") for group in KEY_GROUPS for key, row in overlay.of(group)]
            assert overlay.size_bytes == sum(held) == sum(map(overlay.bytes_of, KEY_GROUPS))
            now = OverlaySnapshot(store.snapshot(), overlay)
            check(now, model.entries, asked, start, stop)
            now.close()
        for snapshot, entries in seen:  # as they were when they were taken
            check(snapshot, entries, asked, start, stop)
            snapshot.close()


@pytest.fixture
def store() -> Store:
    return MemoryEngine().open("application", "state", "topic")


def test_what_is_written_stands_over_the_store_no_more(store: Store) -> None:
    key, other = prefix_of(1) + b"a", prefix_of(2) + b"b"
    first = Overlay().changed([(key, b"1"), (other, None)])
    second = first.changed([(key, b"2")])
    assert (len(first), len(second), key in second, prefix_of(1) + b"x" in second) == (2, 2, True, False)
    left = second.without(first, [1, 2])
    assert (left.of(1), left.of(2), len(left)) == ([(key, b"2")], [], 1)
    assert len(second.without(second, [1, 2])) == 0
    assert second.without(second, [1]).of(2) == [(other, None)], "that of a key group which is not named stays"
    assert second.drop([1]).of(1) == []


def test_a_closed_store_is_noticed_whatever_stands_over_it(store: Store) -> None:
    key = prefix_of(1) + b"a"
    snapshot = OverlaySnapshot(store.snapshot(), Overlay().changed([(key, b"1")]))
    assert snapshot.get(key) == b"1"
    store.close()
    with pytest.raises(NotReady):
        snapshot.get(key)
    with pytest.raises(NotReady):
        snapshot.get_first([key], 100)
