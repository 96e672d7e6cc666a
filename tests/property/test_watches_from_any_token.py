"""A watch that is left after any change, and goes on behind its token wherever the state is by then, has every change
once and in order: what it makes of them is what the state holds, or what a scan with its predicate would find."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole import field
from keyhole.client.wire.watch_stream import WatchMessage
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import prefix_of
from keyhole.errors import OutcomeUnknown
from keyhole.model.selection import Selection
from keyhole.model.state import StateDescriptor
from keyhole.rpc.convert_predicates import selection_to_proto
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.clock import ManualClock
from keyhole.testing.memory_kafka import NextCommit
from keyhole.v1 import query_pb2 as pb
from services.state_server.read.watch_parts import WatchLimits
from services.state_server.read.watcher import MOST_BYTES
from services.state_server.registry import Registry
from services.state_server.servicers.watches import Watches
from tests.support.examples import examples
from tests.support.hosts import Hosted
from tests.support.states import descriptor, key, row
from tests.support.waiting import LONG_SECONDS

KEYS = [f"k{number}" for number in range(12)]
TTL_MS = 3_000


class Wanted(NamedTuple):
    """What is watched: keys that begin so, and values above that; None: all."""

    prefix: str
    above: float | None

    def has(self, name: str, n: float | None) -> bool:
        return n is not None and name.startswith(self.prefix) and (self.above is None or n > self.above)

    def of_request(self, codec: StateCodec) -> dict[str, Any]:
        if self == ALL:
            return {}
        start, stop = codec.key_range(prefix=(self.prefix,) if self.prefix else ())
        where = None if self.above is None else field("n") > self.above
        return {"start": start, "stop": stop, "selection": selection_to_proto(Selection(where)) or pb.Selection()}


ALL = Wanted("", None)


class World:
    """One owner after the other of one state, and a watch that goes on from one to the next.

    Args:
        kept: Bytes of changes that an owner keeps in memory.
        page: Changes in one message.
    """

    def __init__(self, of: StateDescriptor, kept: int, page: int, wanted: Wanted) -> None:
        self.kafka = MemoryKafka()
        self.clock = ManualClock(now_ms=1)  # epochs are committed a second after each other
        self.of = of
        self.kept, self.page, self.wanted = kept, page, wanted
        self.epoch = self.generation = 0
        self.model: dict[str, float] = {}
        self.written_at: dict[str, int] = {}
        self.history: list[tuple[str, int, float | None]] = []
        self.token = ""
        self.rows: dict[str, float] = {}
        self.seen: list[tuple[str, int, float | None, bool]] = []

    async def begin(self) -> None:
        """The next owner, whose store and memory are empty."""
        self.generation += 1
        self.hosted = Hosted(kafka=self.kafka, clock=self.clock, of=self.of)
        registry = Registry("a", "incarnation", lambda: "a:1", 0, 511)
        registry.tables = self.hosted.tables
        await self.hosted.own(self.generation, complete=self.epoch)
        self.hosted.table.changes._most_bytes = self.kept
        limits = WatchLimits(page_changes=self.page, turn=3)
        self.watches = Watches(registry, self.clock, lambda of: MemoryChangelog(self.kafka, of), limits)

    async def commit(self, changes: dict[str, float | None]) -> None:
        self.epoch += 1
        await self.hosted.apply(self.epoch, {key(name): None if n is None else row(n) for name, n in changes.items()})
        for name, n in changes.items():
            self.history.append((name, self.epoch, n))
            self.written_at[name] = self.epoch
            if n is None:
                self.model.pop(name, None)
            else:
                self.model[name] = n

    async def commit_unknown(self, changes: dict[str, float | None], fate: NextCommit) -> None:
        """An epoch whose outcome its owner is not told: it takes its key groups over again, and the epoch comes again
        unless the changelog has it.
        """
        rows = {key(name): None if n is None else row(n) for name, n in changes.items()}
        receipts = await self.hosted.stage(self.epoch + 1, rows)
        self.kafka.next_commit = fate
        with pytest.raises(OutcomeUnknown):
            await self.hosted.commit(self.epoch + 1, receipts)
        self.generation += 1
        await self.hosted.own(self.generation, complete=self.epoch)
        await self.commit(changes)

    async def watch(self, done: Callable[[int], bool]) -> None:
        """Goes on until so many changes have come, or there are no more."""
        request = pb.WatchRequest(
            state=pb.StateRef(application="app", state="counts"),
            token=self.token,
            progress_ms=100,
            **self.wanted.of_request(self.hosted.table.codec),
        )
        ticking = asyncio.create_task(self._tick())
        try:
            await self._watch(request, done)
        finally:
            ticking.cancel()

    async def _tick(self) -> None:
        """Time passes, by which a watch says that all has come; but for what expires."""
        while True:
            await asyncio.sleep(0.02)
            self.clock.advance(0.2)
            self.clock.jump(-0.2)

    async def _watch(self, request: pb.WatchRequest, done: Callable[[int], bool]) -> None:
        count = 0
        async with asyncio.timeout(LONG_SECONDS), aclosing(self.watches.responses(request)) as responses:
            async for message in responses:
                changes: list[Any] = [(part, at) for part in message.changes for at in range(len(part.keys))]
                came = WatchMessage(changes, message.token or self.token, (self.token, message), False, None, 0)
                for at, (part, index) in enumerate(changes, 1):
                    self._take(part, index)
                    count += 1
                    if done(count):
                        self.token = came.token(at)
                        return
                self.token = came.whole
                if done(count) or (not changes and message.epoch == self.epoch):
                    return

    def _take(self, part: pb.WatchedChanges, index: int) -> None:
        stored, value = prefix_of(part.key_group) + part.keys[index], part.values[index]
        (name,) = self.hosted.table.codec.key(stored)
        n = msgspec.msgpack.decode(value)[1] if value else None
        self.seen.append((str(name), part.epoch, n, part.snapshot))
        if n is None:
            self.rows.pop(str(name), None)
        else:
            self.rows[str(name)] = n

    def check(self) -> None:
        """Each key's changes are those that were committed since its row was given, each once and in order."""
        for name in KEYS:
            seen = [one for one in self.seen if one[0] == name]
            begins = 0
            if seen and seen[0][3]:
                begins = seen[0][1]
            assert not any(snapshot for *_, snapshot in seen[1:])
            changes = [(epoch, n) for _, epoch, n, snapshot in seen if not snapshot]
            committed = [(epoch, n) for of, epoch, n in self.history if of == name and epoch > begins]
            if self.wanted != ALL:
                changes, committed = self._without_noise(name, changes), self._of_wanted(name, committed, bool(begins))
            if self.of.ttl_ms:
                changes = [one for one in changes if one[1] is not None or one in committed]
                committed = [one for one in committed if one[1] is not None or one in changes]
            if seen and seen[0][3]:
                assert changes == committed
            else:  # there was no row of it: what came before was passed over
                assert changes == committed[len(committed) - len(changes) :]

    def _of_wanted(
        self, name: str, committed: list[tuple[int, float | None]], had: bool
    ) -> list[tuple[int, float | None]]:
        """As a watch of what is wanted has them: what comes and changes, and what leaves."""
        found: list[tuple[int, float | None]] = []
        for epoch, n in committed:
            has = self.wanted.has(name, n)
            if has or had:
                found.append((epoch, n if has else None))
            had = has
        return found

    def _without_noise(self, name: str, changes: list[tuple[int, float | None]]) -> list[tuple[int, float | None]]:
        """Without deletions of what the reader doesn't have."""
        had, found = any(one[0] == name and one[3] for one in self.seen), []
        for epoch, n in changes:
            if had or n is not None:
                found.append((epoch, n))
            had = n is not None
        return found

    @property
    def expected(self) -> dict[str, float]:
        """What is wanted of what there is: as a scan finds it."""
        return {name: n for name, n in self.model.items() if self.wanted.has(name, n)}


CHANGES = st.dictionaries(
    st.sampled_from(KEYS), st.none() | st.integers(0, 99).map(float), min_size=1, max_size=len(KEYS)
)
UNKNOWN = st.sampled_from([NextCommit.IS_COMMITTED_BUT_NOT_ANSWERED, NextCommit.IS_LOST_AND_NOT_ANSWERED])
STEPS = st.lists(
    st.one_of(CHANGES, CHANGES, st.tuples(CHANGES, UNKNOWN), st.integers(1, 9), st.none()), min_size=3, max_size=14
)

SELECTED = st.sampled_from([Wanted("k1", None), Wanted("", 50.0), Wanted("k1", 50.0)])


async def _run(steps: list[Any], of: StateDescriptor, kept: int, page: int, wanted: Wanted) -> None:
    world = World(of, kept, page, wanted)
    await world.begin()
    for step in steps:
        if isinstance(step, dict):
            await world.commit(step)
        elif isinstance(step, tuple):
            await world.commit_unknown(*step)
        elif step is None:
            await world.hosted.host.close()
            await world.begin()
        else:
            left = len(world.seen) + step
            # Whoever waits for more than there is would wait for ever.
            most = min(step, _expected(world))
            await world.watch(most.__le__)
            assert len(world.seen) <= left
    # The last one that comes is of each key group.
    await world.commit({name: (1000.0 + at) * (-1) ** (wanted != ALL and at % 3 == 0) for at, name in enumerate(KEYS)})
    await world.watch(lambda _: world.rows == world.expected)
    world.check()
    assert world.rows == world.expected
    assert world.hosted.read(*map(key, KEYS)) == [row(world.model[name]) for name in KEYS]
    await world.hosted.host.close()


def _expected(world: World) -> int:
    """At least so many changes are to come: of keys that the watch has otherwise."""
    if world.of.ttl_ms:
        return 0
    return sum(world.rows.get(name) != n for name, n in world.expected.items())


@settings(max_examples=examples(20), deadline=None)
@given(st.sampled_from([MOST_BYTES, 900, 0]), st.sampled_from([1, 3]), STEPS)
def test_a_watch_from_any_token_is_the_difference_of_what_was_and_is(kept: int, page: int, steps: list[Any]) -> None:
    asyncio.run(_run(steps, descriptor(), kept, page, ALL))


@settings(max_examples=examples(20), deadline=None)
@given(st.sampled_from([MOST_BYTES, 900, 0]), st.sampled_from([1, 3]), SELECTED, STEPS)
def test_a_watch_of_a_prefix_or_a_predicate_is_the_difference_of_two_scans_with_it(
    kept: int, page: int, wanted: Wanted, steps: list[Any]
) -> None:
    asyncio.run(_run(steps, descriptor(), kept, page, wanted))


@settings(max_examples=examples(10), deadline=None)
@given(st.sampled_from([MOST_BYTES, 900]), st.just(ALL) | SELECTED, STEPS)
def test_where_entries_expire_the_watch_has_what_reads_show(kept: int, wanted: Wanted, steps: list[Any]) -> None:
    asyncio.run(_run(steps, descriptor(ttl_ms=TTL_MS), kept, 2, wanted))
