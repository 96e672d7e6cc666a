"""What a reader answers is what its server would at that moment, or nothing: whatever happens to a server's table.

One process: the reader is told, or not yet, of what a real table on LMDB shows.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from keyhole.encoding.storage_key import prefix_of
from keyhole.model.epoch import START, EpochStamp, Position
from keyhole.model.read import ReadBounds, Stale
from keyhole.model.state import TtlClock, ValueField, ValueSchema
from keyhole.rpc.read_requests import KeyLookup
from keyhole.stores.base import Advance, Batch, Snapshot, StoreFiles, StoreLimits
from keyhole.stores.indexed import IndexedStore
from keyhole.stores.lmdb.engine import LmdbEngine, LmdbStore
from keyhole.testing.clock import ManualClock
from services.state_server.read.standing import Lease, Standing
from services.state_server.read.table import Table
from services.state_server.readers.read_tables import LostWordError, ReadTables
from services.state_server.readers.reader_words import Shown, ToReader
from services.state_server.readers.shared_count import SharedCount
from services.state_server.readers.shown_tables import ShownTables
from services.state_server.servicers.lookup_responses import frame_response
from tests.support.examples import examples
from tests.support.states import KEY_GROUPS, descriptor, row

GROUPS = st.frozensets(st.integers(0, KEY_GROUPS - 1))
NAME = ("app", "counts")
_READ = msgspec.msgpack.Decoder[ToReader](ToReader)


class Beside:
    """A store that is open to be read: LMDB lets no process open one twice."""

    def __init__(self, store: LmdbStore) -> None:
        self._store = store
        self.max_key_bytes = store.max_key_bytes
        self.closed = False

    def snapshot(self) -> Snapshot:
        return self._store.snapshot()

    def close(self) -> None:
        self.closed = True


class SharedTables(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.engine = LmdbEngine(StoreLimits(Path(self.directory.name) / "stores", 1 << 28))
        self.clock = ManualClock()
        self.count = SharedCount.make()
        self.said: list[Shown] = []
        self.shown = ShownTables(self.count, self._say)
        self.stores: dict[str, LmdbStore] = {}
        self.opened: list[Beside] = []
        self.reader = ReadTables("server", self.count, self.clock, self._open_files)
        self.lease = Lease(self.clock, 3.0)
        self.epoch = 0
        self.views: list[tuple[Snapshot, Standing, dict[int, Position]]] = []
        self.topic = 0
        self.table: Table | None = None
        self.lost = False
        self._say(self.shown.all())
        self._make()

    def _say(self, shown: Shown) -> None:
        word = _READ.decode(msgspec.msgpack.encode(shown))
        assert isinstance(word, Shown)
        self.said.append(word)

    def _open_files(self, files: StoreFiles) -> Beside:
        beside = Beside(self.stores[str(files.path)])
        self.opened.append(beside)
        return beside

    def _make(self, lives: TtlClock | None = None) -> None:
        self.topic += 1
        store = self.engine.open(*NAME, f"topic-{self.topic}")
        self.stores[str(store.files.path)] = store
        of = descriptor(topic_id=f"topic-{self.topic}")
        if lives is not None:
            of = msgspec.structs.replace(of, ttl_ms=1000, ttl_clock=lives)
        self.table = Table("server", of, IndexedStore(store, of), self.lease)
        self.store, self.positions = store, dict.fromkeys(range(KEY_GROUPS), START)
        self._in_step(lambda: self.shown.changed(self.now))
        self.lease.on_confirm = lambda: self.shown.changed(self.now)

    @property
    def now(self) -> Table:
        assert self.table is not None
        return self.table

    def _in_step(self, step: Any) -> None:
        """As on the server's event loop: what is told of the step is told behind it."""

        async def run() -> None:
            step()
            await asyncio.sleep(0)

        self.loop.run_until_complete(run())

    @rule(groups=GROUPS, value=st.floats(allow_nan=False))
    def write(self, groups: frozenset[int], value: float) -> None:
        """The store has more than is shown: an epoch that is committed, or what a standby has followed."""
        self.epoch += 1
        puts = [(prefix_of(group) + name, row(value)) for group in sorted(groups) for name in (b"a", b"b")]
        after = {of: Position(self.epoch, self.epoch, 1, 0, 1000 * self.epoch) for of in groups}
        advances = {of: Advance(self.positions[of], at) for of, at in after.items()}
        self.store.apply(Batch(puts=puts, advances=advances))
        self.positions |= after

    @rule()
    def take_a_view(self) -> None:
        """On the host's thread: it is on its way to the event loop."""
        stamp = EpochStamp(self.epoch, 1, 1000 * self.epoch, 0)
        self.views.append((self.now.store.snapshot(), Standing(stamp, 1), dict(self.positions)))

    @precondition(lambda self: self.views)
    @rule(groups=GROUPS, owned=st.booleans(), behind=GROUPS)
    def publish(self, groups: frozenset[int], owned: bool, behind: frozenset[int]) -> None:
        snapshot, standing, positions = self.views.pop(0)
        apart = {of: Standing(positions[of].stamp, as_of_ms=5, lag_epochs=1) for of in behind}

        def step() -> None:
            if owned:
                self.now.publish(snapshot, groups, standing, {of: positions[of] for of in groups})
            else:
                self.now.standby.publish(snapshot, groups, standing, {})
                self.now.standby.stand(standing, apart)

        self._in_step(step)

    @rule(owned=st.booleans(), value=st.integers(0, 9), shown=st.booleans(), more=st.booleans())
    def commit(self, owned: bool, value: int, shown: bool, more: bool) -> None:
        """As it mostly is: an epoch is written and shown. Then more may be written, which nobody sees yet."""
        everything = frozenset(range(KEY_GROUPS))
        self.write(everything, float(value))
        self.take_a_view()
        while self.views:
            self.publish(everything, owned, frozenset())
        if more:
            self.write(everything, 100.0)
        if shown:
            self.tell_all()

    @rule()
    def tell_all(self) -> None:
        """The reader knows all that there is to know, and answers whatever it has a view of."""
        while self.said:
            self._hear()
        assert self.reader._heard == self.count.value or self.lost

    @rule(groups=GROUPS, owned=st.booleans())
    def withdraw(self, groups: frozenset[int], owned: bool) -> None:
        self._in_step(lambda: (self.now.owned if owned else self.now.standby).withdraw(groups))

    @rule()
    def confirm(self) -> None:
        self._in_step(self.lease.confirm)

    @rule(seconds=st.sampled_from([0.5, 4.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def renew(self) -> None:
        """The server shows the same by a later view, where that has the same."""
        keys = [prefix_of(group) + name for group in range(KEY_GROUPS) for name in (b"a", b"b")]
        lookup = KeyLookup(NAME, ReadBounds(), False, (), keys, self.now.descriptor.topic_id)
        before, snapshot = frame_response(self.now, lookup, 7), self.now.store.snapshot()

        def step() -> None:
            if not self.now.owned.renew(snapshot, self.positions):
                snapshot.close()

        self._in_step(step)
        assert frame_response(self.now, lookup, 7) == before

    @rule()
    def evolve(self) -> None:
        """Another field, which what is stored lacks."""
        before = self.now.descriptor
        fields = (*before.value.fields, ValueField(f"f{len(before.value.fields)}", "double"))
        value = ValueSchema(before.value.version + 1, fields)
        after = msgspec.structs.replace(before, value=value, earlier=(*before.earlier, before.value))

        def step() -> None:
            assert self.now.evolve(after)
            self.shown.changed(self.now)

        self._in_step(step)

    @rule(lives=st.sampled_from([None, *TtlClock]))
    def make_anew(self, lives: TtlClock | None) -> None:
        """The state is declared again, under another topic: another table, and the store's files are others."""
        for snapshot, *_ in self.views:
            snapshot.close()
        self.views.clear()
        self._in_step(self.now.close)
        self.store.close()
        self._make(lives)

    @precondition(lambda self: self.said)
    @rule(count=st.integers(1, 3))
    def tell(self, count: int) -> None:
        """The reader hears some of what was said."""
        for _ in range(count):
            if self.said:  # a reader that begins anew hears one word in place of all that were on their way
                self._hear()

    def _hear(self) -> None:
        try:
            self.reader.take(self.said.pop(0))
        except LostWordError:
            assert self.lost
            self.begin_anew()

    @precondition(lambda self: self.said)
    @rule()
    def lose(self) -> None:
        """A word does not come, and those behind it do."""
        self.said.pop(0)
        self.lost = True

    @rule()
    def begin_anew(self) -> None:
        """The reader is killed, and another one told of all."""
        self.reader.close()
        self.said.clear()
        self.lost = False
        self.reader = ReadTables("server", self.count, self.clock, self._open_files)
        self._in_step(lambda: self._say(self.shown.all()))

    @invariant()
    def what_is_answered_is_what_the_server_answers(self) -> None:
        topic_id = self.now.descriptor.topic_id
        for groups in ((0,), (1,), tuple(range(KEY_GROUPS))):
            keys = [prefix_of(group) + name for group in groups for name in (b"a", b"c")]
            for bounds in (
                ReadBounds(),
                ReadBounds(stale=Stale.NEVER),
                ReadBounds(min_epoch=self.epoch),
                ReadBounds(max_staleness_ms=1000),
                ReadBounds(as_of=self.epoch),
                ReadBounds(latest=True),
            ):
                lookup = KeyLookup(NAME, bounds, False, (), keys, topic_id)
                got = self.reader.answer(lookup, 7)
                if got is not None:
                    assert got == frame_response(self.now, lookup, 7)
                    assert not got.failures

    def teardown(self) -> None:
        self.reader.close()
        for snapshot, *_ in self.views:
            snapshot.close()
        self.loop.close()
        self.engine.close()
        self.count.close()
        self.directory.cleanup()
        assert all(beside.closed for beside in self.opened)


TestSharedTables = SharedTables.TestCase
TestSharedTables.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
