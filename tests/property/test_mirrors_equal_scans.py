"""Whatever happens to a state and to the watch of its mirror: after each message, each key group of the copy is what
the state was at the epoch that the copy's answers name."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.backoff import Backoff
from keyhole.client.mirror_copy import MirrorCopy
from keyhole.client.mirror_intake import MirrorLimits
from keyhole.client.mirror_keeping import MirrorKeeper
from keyhole.client.wire.watch_stream import StoredMessage, WatchOptions
from keyhole.encoding.codec import StateCodec
from keyhole.errors import KeyholeError, RequestError, ResumeGone, ServerLost, TooSlow, UnavailableError
from keyhole.model.predicates import field
from keyhole.model.selection import EVERYTHING, Selection
from keyhole.rpc.convert_predicates import selection_to_proto
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.clock import ManualClock
from keyhole.v1 import query_pb2 as pb
from services.state_server.read.watch_parts import WatchLimits
from services.state_server.registry import Registry
from services.state_server.servicers.watches import Watches
from tests.support.examples import examples
from tests.support.hosts import Hosted
from tests.support.states import CODEC, descriptor, group, key, row
from tests.support.waiting import LONG_SECONDS

KEYS = [f"k{number}" for number in range(12)]
LEAST = 50.0
ENDS: dict[str, KeyholeError] = {
    "cut": ServerLost("a proxy has gone"),
    "slow": TooSlow("taken too slowly"),
    "gone": ResumeGone("compacted"),
}


TTL_MS = 3_000


class World:
    """Owners of one state, one after the other, and a mirror of it."""

    def __init__(self, page: int, select: Selection, ttl_ms: int = 0) -> None:
        self.of = descriptor(ttl_ms=ttl_ms)
        self.codec = StateCodec(self.of)
        self.asked = WatchOptions((), True, False, False, select)
        self.kafka = MemoryKafka()
        self.clock = ManualClock(now_ms=1)
        self.page = page
        self.epoch = self.generation = 0
        # What the state was, by epoch.
        self.models: dict[int, dict[str, float]] = {0: {}}
        self.checked = 0
        self.ended = asyncio.get_running_loop().create_future()
        self.keeper = MirrorKeeper("app/counts", self.watch, self.copy, Backoff(0.001, 0.001))

    def copy(self) -> MirrorCopy:
        clocks = (lambda: self.clock.now_ms() / 1000, self.clock.monotonic)
        return MirrorCopy("app/counts", self.asked, MirrorLimits(100, 100_000), clocks)

    async def begin(self) -> None:
        """The next owner, who has nothing in memory."""
        self.generation += 1
        self.hosted = Hosted(kafka=self.kafka, clock=self.clock, of=self.of)
        registry = Registry("a", "incarnation", lambda: "a:1", 0, 511)
        registry.tables = self.hosted.tables
        await self.hosted.own(self.generation, complete=self.epoch)
        limits = WatchLimits(page_changes=self.page, turn=3)
        self.watches = Watches(registry, self.clock, lambda of: MemoryChangelog(self.kafka, of), limits)

    async def commit(self, changes: dict[str, float | None]) -> None:
        self.epoch += 1
        left = self.models[self.epoch - 1] | changes
        self.models[self.epoch] = {name: n for name, n in left.items() if n is not None}
        await self.hosted.apply(self.epoch, {key(name): None if n is None else row(n) for name, n in changes.items()})

    def end(self, why: str) -> None:
        """The watch ends."""
        ended, self.ended = self.ended, asyncio.get_running_loop().create_future()
        ended.set_result(ENDS[why])

    async def watch(self, token: str) -> AsyncGenerator[StoredMessage]:
        state = pb.StateRef(application="app", state="counts")
        selection = selection_to_proto(self.asked.select)
        request = pb.WatchRequest(state=state, token=token, progress_ms=100, selection=selection)
        responses = self.watches.responses(request)
        ended, whole = self.ended, token
        async with contextlib.aclosing(responses):
            while True:
                coming = asyncio.ensure_future(anext(responses))
                # Whether or not anybody waits for it by then.
                coming.add_done_callback(lambda of: of.cancelled() or of.exception())
                try:
                    await asyncio.wait([coming, ended], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not coming.done():
                        coming.cancel()
                        await asyncio.wait([coming])
                if ended.done():
                    raise ended.result()
                try:
                    message = coming.result()
                except (UnavailableError, RequestError) as error:
                    # Of an owner that goes: a proxy waits for the next one.
                    raise ServerLost("an owner has gone") from error
                whole = message.token or whole
                yield StoredMessage(self.codec, message, whole)
                self.check()

    def selected(self, epoch: int) -> dict[str, float]:
        """What a scan gives as of an epoch."""
        where = self.asked.select.where
        return {name: n for name, n in self.models[epoch].items() if where is None or n >= LEAST}

    def check(self) -> None:
        """The mirror has taken in another message."""
        if (copy := self.keeper.shown) is None or self.of.ttl_ms:
            return
        self.checked += 1
        found: dict[str, float] = {}
        epochs: dict[int, int] = {}
        for entry in copy.keyed_entries():
            found[entry.key] = entry.value.n
            assert epochs.setdefault(group(entry.key), entry.source.epoch) == entry.source.epoch
        for name, answer in zip(KEYS, copy.answers(KEYS), strict=True):
            epoch = epochs.setdefault(group(name), answer.epoch)
            assert epoch == answer.epoch
            expected = self.selected(epoch).get(name)
            assert (found.get(name), answer.value and answer.value.n) == (expected, expected)
        assert copy.entries == len(found)

    async def tick(self) -> None:
        """Time passes, by which a watch says that all has come."""
        while True:
            await asyncio.sleep(0.01)
            self.clock.advance(0.1)


CHANGES = st.dictionaries(
    st.sampled_from(KEYS), st.none() | st.integers(0, 99).map(float), min_size=1, max_size=len(KEYS)
)
STEPS = st.lists(st.one_of(CHANGES, CHANGES, st.sampled_from([*ENDS, "owner", "wait"])), min_size=2, max_size=14)


async def _expire(page: int, steps: list[Any]) -> None:
    world = World(page, EVERYTHING, TTL_MS)
    await world.begin()
    ticking = asyncio.create_task(world.tick())
    try:
        await world.commit({"k0": 1.0, "k1": 2.0})
        await world.keeper.begin(LONG_SECONDS)
        for step in steps:
            await world.commit(step)
        await world.keeper.reached(world.epoch, LONG_SECONDS)
        ticking.cancel()
        copy = world.keeper.shown
        assert copy is not None
        for _ in range(12):
            found = [CODEC.decode_row(of) if of else None for of in world.hosted.read(*map(key, KEYS))]
            assert [answer.value for answer in copy.answers(KEYS)] == found
            assert copy.entries == sum(of is not None for of in found)
            assert {entry.key for entry in copy.keyed_entries()} == {n for n, of in zip(KEYS, found, strict=True) if of}
            world.clock.jump(1.0)
    finally:
        ticking.cancel()
        await world.keeper.end()
        await world.hosted.host.close()


async def _run(page: int, select: Selection, steps: list[Any]) -> None:
    world = World(page, select)
    await world.begin()
    await world.commit({"k0": 1.0, "k1": 2.0})
    ticking = asyncio.create_task(world.tick())
    try:
        await world.keeper.begin(LONG_SECONDS)
        for step in steps:
            if isinstance(step, dict):
                await world.commit(step)
            elif step == "owner":
                await world.hosted.host.close()
                await world.begin()
                world.end("cut")
            elif step == "wait":
                await world.keeper.reached(world.epoch, LONG_SECONDS)
            else:
                world.end(step)
        await world.keeper.reached(world.epoch, LONG_SECONDS)
        assert world.checked or world.of.ttl_ms
        world.check()
        assert world.keeper.shown is not None
        assert {entry.key: entry.value.n for entry in world.keeper.shown.keyed_entries()} == world.selected(world.epoch)
    finally:
        ticking.cancel()
        await world.keeper.end()
        await world.hosted.host.close()


@settings(max_examples=examples(25), deadline=None)
@given(st.sampled_from([1, 3, 500]), st.sampled_from([EVERYTHING, Selection(field("n") >= LEAST)]), STEPS)
def test_a_mirror_equals_a_scan_at_its_epoch_whatever_ends_its_watch(
    page: int, select: Selection, steps: list[Any]
) -> None:
    asyncio.run(_run(page, select, steps))


@settings(max_examples=examples(10), deadline=None)
@given(st.sampled_from([1, 500]), st.lists(CHANGES, max_size=6))
def test_what_has_expired_is_hidden_when_it_is_by_reads_also_where_no_epoch_comes(page: int, steps: list[Any]) -> None:
    asyncio.run(_expire(page, steps))
