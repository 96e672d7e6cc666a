"""Looks for a sequence of batches, drops, snapshots, crashes and restarts after which a store differs from a dict.

    class MyStoreMachine(StoreMachine):
        def make_engine(self, limits: StoreLimits) -> StoreEngine:
            return MyEngine(limits)

    TestMyStoreEqualsADict = MyStoreMachine.TestCase
    TestMyStoreEqualsADict.settings = SETTINGS

Needs pytest and hypothesis: keyhole-spark[testing].
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keyhole.encoding.storage_key import group_of, prefix_of
from keyhole.errors import StoreConflict
from keyhole.model.epoch import START, Position
from keyhole.stores.base import Advance, Batch, Snapshot, Store, StoreEngine, StoreLimits, takes_parts

KEY_GROUPS = (0, 1, 255, 256, 65_535)
LIMIT_BYTES = 1 << 30
# Enough to find what we have found so far, in seconds.
SETTINGS = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

names = st.binary(max_size=3) | st.sampled_from([b"\x00", b"\xff\xff", b"k" * 200])
storage_keys = st.builds(lambda group, name: prefix_of(group) + name, st.sampled_from(KEY_GROUPS), names)
# The longer ones lie in pages of their own in LMDB.
rows = st.binary(max_size=20) | st.integers(2000, 9000).map(lambda length: b"r" * length)


@dataclass
class Model:
    """What a store should hold: its entries by storage key, and the position of each key group."""

    entries: dict[bytes, bytes] = field(default_factory=dict)
    positions: dict[int, Position] = field(default_factory=dict)

    def copy(self) -> Model:
        return Model(dict(self.entries), dict(self.positions))

    def of(self, key_group: int) -> list[tuple[bytes, bytes]]:
        prefix = prefix_of(key_group)
        return sorted(item for item in self.entries.items() if item[0].startswith(prefix))


def check(snapshot: Snapshot, model: Model) -> None:
    """Asserts that a snapshot holds what the model does, by each way of reading it."""
    assert snapshot.positions() == model.positions
    for key_group in KEY_GROUPS:
        assert list(snapshot.items(key_group)) == model.of(key_group)
        assert list(snapshot.items(key_group, descending=True)) == model.of(key_group)[::-1]
    asked = [*model.entries, b"\x00\x00absent", b"\xff\xff" + b"z" * 600]
    assert snapshot.get_many(asked) == [model.entries.get(key) for key in asked]


def copy_as_it_is(directory: Path, to: Path) -> None:
    """Copies files at one moment. An engine's own threads may be at them: then once more, until they are at rest."""
    while True:
        before = _files(directory)
        shutil.rmtree(to, ignore_errors=True)
        try:
            shutil.copytree(directory, to)
        except (shutil.Error, FileNotFoundError):
            continue
        if _files(directory) == before:
            return


def _files(directory: Path) -> dict[Path, tuple[int, int]]:
    found: dict[Path, tuple[int, int]] = {}
    for path in directory.rglob("*"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        found[path] = (status.st_size, status.st_mtime_ns)
    return found


class StoreMachine(RuleBasedStateMachine):
    """See the module's text.

    Attributes:
        survives: Whether what `apply` returned for is there after the process was killed. A crash leaves the files as
            they are at that moment: they are copied while the store is open, and opened by another engine.
    """

    survives: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="keyhole-test-stores-"))
        self.crashes = 0
        self.engine = self.make_engine(self.limits)
        self.model = Model()
        self.snapshots: list[tuple[Snapshot, Model]] = []
        self.epoch = 0

    def make_engine(self, limits: StoreLimits) -> StoreEngine:
        """A new engine. The directory may be there, with what another one has written."""
        raise NotImplementedError

    @property
    def limits(self) -> StoreLimits:
        return StoreLimits(self.root / str(self.crashes), LIMIT_BYTES)

    def crash(self) -> StoreEngine:
        """Ends the engine without closing it, and returns the one that follows."""
        before = self.limits.directory
        self.crashes += 1
        if before.exists():
            copy_as_it_is(before, self.limits.directory)
        self.engine.close()
        shutil.rmtree(before, ignore_errors=True)
        if not self.survives:
            self.model = Model()
        return self.make_engine(self.limits)

    @initialize()
    def start(self) -> None:
        self.store: Store = self.engine.open("application", "state", "topic")

    @rule(
        changes=st.dictionaries(storage_keys, st.none() | rows, max_size=12),
        others=st.sets(st.sampled_from(KEY_GROUPS)),
        conflict=st.sampled_from([None] * 4 + list(KEY_GROUPS)),
        part=st.integers(1, 12),
    )
    def apply(self, changes: dict[bytes, bytes | None], others: set[int], conflict: int | None, part: int) -> None:
        self.epoch += 1
        after = Position(self.epoch * 7, self.epoch, 1, self.epoch * 2**40, self.epoch, 0)
        touched = {group_of(key) for key in changes} | others
        advances = {group: Advance(self.model.positions.get(group, START), after) for group in touched}
        if conflict is not None:
            advances[conflict] = Advance(Position(1, 1, 1, 1), after)
        puts = sorted((key, row) for key, row in changes.items() if row is not None)
        batch = Batch(puts, sorted(key for key, row in changes.items() if row is None), advances)

        def apply() -> None:
            """In parts of so many changes, where the store takes some; as a whole where there is only one."""
            if not takes_parts(self.store) or part >= len(changes):
                self.store.apply(batch)
                return
            keys = sorted(changes)
            parts = [dict.fromkeys(keys[at : at + part]) for at in range(0, len(keys), part)]
            self.store.apply_parts(
                [([put for put in puts if put[0] in of], [key for key in batch.deletes if key in of]) for of in parts],
                advances,
            )

        if conflict is not None:
            with pytest.raises(StoreConflict):
                apply()
            return
        apply()
        for key in batch.deletes:
            self.model.entries.pop(key, None)
        self.model.entries.update(puts)
        self.model.positions.update(dict.fromkeys(touched, after))

    @rule(key_group=st.sampled_from(KEY_GROUPS))
    def drop_key_group(self, key_group: int) -> None:
        self.store.drop_key_group(key_group)
        for key, _ in self.model.of(key_group):
            del self.model.entries[key]
        self.model.positions.pop(key_group, None)

    @precondition(lambda self: len(self.snapshots) < 4)
    @rule()
    def take_snapshot(self) -> None:
        self.snapshots.append((self.store.snapshot(), self.model.copy()))

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def read_and_close_snapshot(self, data: st.DataObject) -> None:
        snapshot, model = self.snapshots.pop(data.draw(st.integers(0, len(self.snapshots) - 1)))
        check(snapshot, model)
        snapshot.close()

    @rule(start=storage_keys, stop=storage_keys, key_group=st.sampled_from(KEY_GROUPS))
    def read_between(self, start: bytes, stop: bytes, key_group: int) -> None:
        snapshot = self.store.snapshot()
        expected = [item for item in self.model.of(key_group) if start <= item[0] < stop]
        assert list(snapshot.items(key_group, start, stop)) == expected
        assert list(snapshot.items(key_group, start, stop, descending=True)) == expected[::-1]
        snapshot.close()

    @rule(topic_changes=st.sampled_from([False, False, False, True]))
    def restart(self, topic_changes: bool) -> None:
        # The snapshots are left open: closing the store ends them.
        self.snapshots.clear()
        self.store.close()
        if topic_changes:
            self.engine.open("application", "state", "another topic").close()
            self.model = Model()
        self.store = self.engine.open("application", "state", "topic")

    @rule()
    def crash_and_reopen(self) -> None:
        self.snapshots.clear()
        self.engine = self.crash()
        self.store = self.engine.open("application", "state", "topic")

    @invariant()
    def the_store_equals_the_model(self) -> None:
        snapshot = self.store.snapshot()
        check(snapshot, self.model)
        snapshot.close()
        assert self.store.size().entries == len(self.model.entries)

    def teardown(self) -> None:
        for snapshot, model in self.snapshots:
            check(snapshot, model)
        self.engine.close()
        shutil.rmtree(self.root)
