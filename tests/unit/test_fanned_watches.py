"""One watch through a proxy, with servers that say what a test has them say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from keyhole.clock import SystemClock
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.watch_token import WatchMark, WatchPlace, watch_place
from keyhole.errors import Draining, KeyholeError, NoServer, NotOwner, Overloaded, ServerLost, Unsupported
from keyhole.model.read import Role
from keyhole.protocol.routing import RouteTable, build
from keyhole.protocol.server_view import Holding, ServerView
from keyhole.v1 import query_pb2 as pb
from services.client_proxy.forwarding.watch import FannedWatch
from services.client_proxy.grpc.query_servicer import ProxyServicer
from tests.support.readings import APPLICATION, KEY_GROUPS, STATE, descriptor
from tests.support.waiting import PATIENCE_SECONDS, eventually

SNAPSHOT_BEGUN = WatchMark(0, 0, 0, b"")
ALL_GIVEN = WatchMark(7, 1)


class _Link:
    """A server's answer to one watch after the other."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[pb.WatchRequest] = asyncio.Queue()
        self._says: asyncio.Queue[pb.WatchResponse | KeyholeError] = asyncio.Queue()
        self.request = pb.WatchRequest()

    async def watch(self, request: pb.WatchRequest) -> AsyncGenerator[pb.WatchResponse]:
        self.request = request
        self.asked.put_nowait(request)
        while True:
            said = await self._says.get()
            if isinstance(said, KeyholeError):
                raise said
            yield said

    def say(self, mark: WatchMark = ALL_GIVEN, *, as_of_ms: int = 0, **fields: Any) -> None:
        place = WatchPlace(dict.fromkeys(self.request.key_groups, mark), as_of_ms)
        self._says.put_nowait(pb.WatchResponse(token=place.token(descriptor(), 0), as_of_ms=as_of_ms, **fields))

    def end(self, error: KeyholeError) -> None:
        self._says.put_nowait(error)


class _Directory:
    """Routes as a test has them."""

    def __init__(self, owned: dict[str, Iterable[int]]) -> None:
        self.links = {address: _Link() for address in owned}
        self._change = asyncio.Event()
        self.clock = SystemClock()
        self.settled = asyncio.Event()
        self.own(owned)

    def own(self, owned: dict[str, Iterable[int]]) -> None:
        views = [
            ServerView(address, address, holdings=(Holding(descriptor(), frozenset(of), Role.OWNER, 1, 1, ready=True),))
            for address, of in owned.items()
        ]
        self._tables = build(views, {})
        self._change.set()
        self._change = asyncio.Event()

    @property
    def tables(self) -> dict[tuple[str, str], RouteTable]:
        return self._tables

    async def known(self, name: tuple[str, str], deadline: float) -> None:
        await self.settled.wait()

    def next_change(self) -> asyncio.Event:
        return self._change

    def table(self, name: tuple[str, str]) -> RouteTable:
        return self._tables[name]

    def codec(self, name: tuple[str, str]) -> StateCodec:
        return StateCodec(self._tables[name].descriptor)

    def link(self, address: str) -> _Link | None:
        return self.links.get(address)


class _Watch:
    """What a reader gets of it."""

    def __init__(
        self,
        directory: _Directory,
        token: str = "",
        patience: float = PATIENCE_SECONDS,
        **fields: Any,
    ) -> None:
        request = pb.WatchRequest(state=pb.StateRef(application=APPLICATION, state=STATE), token=token, **fields)
        self.fanned = FannedWatch(directory, request, patience)  # type: ignore[arg-type]
        self.came: list[pb.WatchResponse] = []
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for response in self.fanned.responses():
            self.came.append(response)

    async def until(self, done: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not done():
                assert not self.task.done(), self.task
                await asyncio.sleep(0)


@asynccontextmanager
async def watching(directory: _Directory, **given: Any) -> AsyncIterator[_Watch]:
    watch = _Watch(directory, **given)
    try:
        yield watch
    finally:
        watch.task.cancel()
        await asyncio.gather(watch.task, return_exceptions=True)


async def asked(*links: _Link) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        for link in links:
            await link.asked.get()


async def test_servers_that_know_of_no_selection_are_refused_and_what_is_said_of_them_all_says_that_they_do() -> None:
    directory = _Directory({"a": range(8), "b": range(8, KEY_GROUPS)})
    first, second = directory.links.values()
    selecting = {"selection": pb.Selection(fields=["celsius"])}
    async with watching(directory, **selecting) as watch:
        await asked(first, second)
        # One that is older would take the token of a predicate for that of other keys.
        assert (first.request.token, first.request.selection) == ("", selecting["selection"])
        first.say(as_of_ms=5, selected=True)
        second.say(as_of_ms=5, selected=True)
        first.say(as_of_ms=6, selected=True)
        await watch.until(lambda: watch.came)
        assert {came.selected for came in watch.came} == {True}
        second.say(as_of_ms=6)
        with pytest.raises(Unsupported, match="where, fields"):
            await watch.task


def held_up(fanned: FannedWatch) -> bool:
    return any(part.held_up for part in fanned._parts)


def let_time_pass(fanned: FannedWatch, address: str) -> None:
    """So much that whoever is there, and has said nothing meanwhile, is silent."""
    for part in fanned._parts:
        if part.address == address:
            part.heard_at -= 2 * fanned._silent_seconds
    fanned._listening.cancel()
    fanned._listen()


async def test_who_is_silent_is_asked_again_and_who_waits_for_its_reader_is_not() -> None:
    directory = _Directory({"a": range(8), "b": range(8, KEY_GROUPS)})
    first, second = directory.links.values()
    async with watching(directory) as watch:
        await asked(first, second)
        first.say(as_of_ms=5)
        second.say(as_of_ms=5)
        first.say(as_of_ms=6)
        await watch.until(lambda: watch.came and not held_up(watch.fanned))
        let_time_pass(watch.fanned, "b")
        # It is asked behind what it has said.
        await asked(second)
        place = watch_place(second.request.token, descriptor(), 0)
        assert set(place.marks.values()) == {ALL_GIVEN}
        assert first.asked.empty()
        second.say(as_of_ms=7)
        first.say(as_of_ms=7)
        await watch.until(lambda: watch.came[-1].as_of_ms == 7 and not held_up(watch.fanned))
        # Where nobody else is there, and it stays silent, that is the reason.
        watch.fanned._patience = 0.1
        let_time_pass(watch.fanned, "b")
        with pytest.raises(ServerLost, match="server b has said nothing"):
            await watch.task
    # What waits for its reader is no silence.
    directory = _Directory({"a": range(KEY_GROUPS)})
    (link,) = directory.links.values()
    request = pb.WatchRequest(state=pb.StateRef(application=APPLICATION, state=STATE))
    fanned = FannedWatch(directory, request, PATIENCE_SECONDS)  # type: ignore[arg-type]
    async with aclosing(fanned.responses()) as responses, asyncio.timeout(PATIENCE_SECONDS):
        reading = asyncio.ensure_future(anext(responses))
        await asked(link)
        for _ in range(8):
            link.say()
        await reading
        await eventually(lambda: held_up(fanned))
        let_time_pass(fanned, "a")
        assert not any(part.silent for part in fanned._parts)
        for _ in range(7):
            await anext(responses)
        assert link.asked.empty()


async def test_nothing_is_said_before_all_parts_have_begun_and_nobody_is_looked_for_for_ever() -> None:
    directory = _Directory({"a": range(5), "b": range(5, 10), "c": range(10, KEY_GROUPS - 1)})
    links = list(directory.links.values())
    async with watching(directory, patience=0.3) as watch:
        await asked(*links)
        for link in links:
            link.say(SNAPSHOT_BEGUN, as_of_ms=5)
        with pytest.raises(NoServer):
            await watch.task
        assert watch.came == []


async def test_what_is_known_does_not_advance_while_key_groups_have_no_owner() -> None:
    directory = _Directory({"a": range(8), "b": range(8, KEY_GROUPS)})
    a, b = directory.links.values()
    async with watching(directory) as watch:
        await asked(a, b)
        a.say(as_of_ms=5)
        b.say(as_of_ms=4)
        await watch.until(lambda: len(watch.came) == 1)
        assert (watch.came[0].as_of_ms, watch.came[0].snapshot_done) == (4, True)
        directory.own({"a": range(8)})
        b.end(NotOwner("it is another's"))
        await watch.until(lambda: watch.fanned._homeless)
        a.say(as_of_ms=50, epoch=9)
        await watch.until(lambda: len(watch.came) == 2)
        assert (watch.came[1].as_of_ms, watch.came[1].epoch) == (4, 0)
        # Whoever has them next is asked behind what was given, with a time from which nothing is missed.
        directory.own({"a": range(8), "b": range(8, KEY_GROUPS)})
        await asked(b)
        assert watch_place(b.request.token, descriptor(), 0).as_of_ms == 4
        b.say(as_of_ms=60, epoch=9)
        await watch.until(lambda: len(watch.came) == 3)
        assert (watch.came[2].as_of_ms, watch.came[2].epoch, watch.came[2].snapshot_done) == (50, 9, False)
        watch.fanned.drain()
        with pytest.raises(Draining):
            await watch.task


async def test_what_has_another_owner_is_asked_of_it_though_the_one_before_says_nothing_of_it() -> None:
    """As one says nothing that is cut off, or stands still: its connection is there, and it knows of no other owner."""
    directory = _Directory({"a": range(KEY_GROUPS), "b": ()})
    first, second = directory.links.values()
    async with watching(directory) as watch:
        await asked(first)
        first.say(snapshot_done=True, as_of_ms=10)
        await watch.until(lambda: watch.came)
        directory.own({"a": range(8), "b": range(8, KEY_GROUPS)})
        await asked(first, second)
        assert list(second.request.key_groups) == list(range(8, KEY_GROUPS))
        assert set(watch_place(second.request.token, descriptor(), 0).marks.values()) == {ALL_GIVEN}
        # Who has them when nobody is known to is not left: it may still speak of them.
        directory.own({"a": range(8), "b": ()})
        second.say(as_of_ms=20)
        first.say(as_of_ms=30)
        await watch.until(lambda: watch.came[-1].as_of_ms == 20)
        assert first.asked.empty()
        assert second.asked.empty()


async def test_that_all_rows_were_given_is_said_once_also_where_an_owner_went_behind_the_last_one() -> None:
    directory = _Directory({"a": range(KEY_GROUPS)})
    (a,) = directory.links.values()
    rows_left = WatchPlace(dict.fromkeys(range(KEY_GROUPS), SNAPSHOT_BEGUN), 1).token(descriptor(), 0)
    for token in ("", rows_left):
        async with watching(directory, token=token) as watch:
            await asked(a)
            a.say(SNAPSHOT_BEGUN)
            await watch.until(lambda: len(watch.came) == 1)
            a.end(NotOwner("not any more"))
            await asked(a)
            # It has no rows to give, so it says nothing of them.
            a.say()
            a.say(snapshot_done=True)
            await watch.until(lambda: len(watch.came) == 3)
            assert [response.snapshot_done for response in watch.came] == [False, True, False]
    async with watching(directory, token=watch.came[-1].token) as watch:
        await asked(a)
        a.say()
        await watch.until(lambda: len(watch.came) == 1)
        assert not watch.came[0].snapshot_done
        a.end(Overloaded("it has enough"))
        with pytest.raises(Overloaded):
            await watch.task


async def test_watches_count_before_it_is_known_who_has_the_state() -> None:
    directory: Any = _Directory({"a": range(KEY_GROUPS)})
    servicer = ProxyServicer(directory, PATIENCE_SECONDS, max_watches=1)
    context: Any = SimpleNamespace(time_remaining=lambda: None)
    request = pb.WatchRequest(state=pb.StateRef(application=APPLICATION, state=STATE))
    first = asyncio.create_task(anext(aiter(servicer.Watch(request, context))))
    await asyncio.sleep(0)
    for _ in range(2):
        with pytest.raises(Overloaded):
            await anext(aiter(servicer.Watch(request, context)))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    directory.settled.set()
    again = asyncio.create_task(anext(aiter(servicer.Watch(request, context))))
    await asked(directory.links["a"])
    directory.links["a"].say()
    assert (await again).snapshot_done


async def test_a_proxy_that_drains_ends_watches_that_wait_and_those_that_come() -> None:
    directory: Any = _Directory({"a": range(KEY_GROUPS)})
    servicer = ProxyServicer(directory, PATIENCE_SECONDS)
    context: Any = SimpleNamespace(time_remaining=lambda: None)
    request = pb.WatchRequest(state=pb.StateRef(application=APPLICATION, state=STATE))
    waits = asyncio.create_task(anext(aiter(servicer.Watch(request, context))))
    await asyncio.sleep(0)
    servicer.drain()
    directory.settled.set()
    for watch in (waits, anext(aiter(servicer.Watch(request, context)))):
        with pytest.raises(Draining):
            await asyncio.wait_for(watch, PATIENCE_SECONDS)
    assert directory.links["a"].asked.empty()


async def test_a_message_that_is_passed_through_costs_no_task() -> None:
    directory = _Directory({"a": range(KEY_GROUPS)})
    (a,) = directory.links.values()
    made: list[object] = []

    def counted(loop: asyncio.AbstractEventLoop, of: Any, **given: Any) -> asyncio.Task[Any]:
        made.append(of)
        return asyncio.Task(of, loop=loop, **given)

    async with watching(directory) as watch:
        await asked(a)
        a.say()
        await watch.until(lambda: len(watch.came) == 1)
        asyncio.get_running_loop().set_task_factory(counted)
        for epoch in range(20):
            a.say(epoch=epoch)
            await watch.until(lambda epoch=epoch: len(watch.came) == epoch + 2)  # type: ignore[misc]
        asyncio.get_running_loop().set_task_factory(None)
        assert not made
        # It looks at once where routes change, also while nothing comes.
        directory.links["b"] = b = _Link()
        directory.own({"b": range(KEY_GROUPS)})
        await asked(b)
        assert b.request.token
