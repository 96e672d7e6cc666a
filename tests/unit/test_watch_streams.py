"""A client's watch, and how it begins again, with a proxy that says what a test has it say."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from keyhole.client.state_scans import AsyncStateScan
from keyhole.client.state_watches import AsyncWatch
from keyhole.client.wire.watch_stream import WatchMessage, WatchOptions, WatchStream
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.watch_token import WatchMark, WatchPlace, watch_place
from keyhole.errors import KeyholeError, NoServer, ServerLost, Unauthenticated, ValueMismatch
from keyhole.model.change import ChangeKind, StateChange
from keyhole.v1 import query_pb2 as pb
from tests.support.readings import APPLICATION, KEY_GROUPS, STATE, descriptor
from tests.support.refusals import longer_and_longer
from tests.support.waiting import PATIENCE_SECONDS


def said(below: bytes | None = None, *, as_of_ms: int = 0, **fields: Any) -> pb.WatchResponse:
    place = WatchPlace(dict.fromkeys(range(KEY_GROUPS), WatchMark(7, 1, 0, below)), as_of_ms)
    return pb.WatchResponse(token=place.token(descriptor(), 0), as_of_ms=as_of_ms, **fields)


SILENT = "silent"


class _Call:
    def __init__(self, says: Sequence[Any]) -> None:
        self._says = says

    async def __aiter__(self) -> AsyncIterator[pb.WatchResponse]:
        for one in self._says:
            if isinstance(one, KeyholeError):
                raise one
            if isinstance(one, float):
                await asyncio.sleep(one)
                continue
            if one is SILENT:
                await asyncio.sleep(PATIENCE_SECONDS)
            yield one

    def cancel(self) -> None:
        pass


class _Proxy:
    """The links of a client, the only one of them, and its stub.

    Args:
        calls: What each call gets; the last one's is what all further ones get, too.
    """

    cause = None
    target = "proxy"

    def __init__(self, *calls: Sequence[Any]) -> None:
        self._calls = calls
        self.stub = self
        self.requests: list[pb.WatchRequest] = []

    def Watch(self, request: pb.WatchRequest) -> _Call:  # noqa: N802 - gRPC's name
        self.requests.append(request)
        return _Call(self._calls[min(len(self.requests), len(self._calls)) - 1])

    def heard(self) -> None:
        pass

    def next(self) -> _Proxy:
        return self

    def given_up(self, error: object) -> None:
        return None

    async def pause(self, until: float) -> None:
        await asyncio.sleep(until - asyncio.get_running_loop().time())

    async def codec(self, deadline: float) -> StateCodec:
        return StateCodec(descriptor())

    def watch(self, seconds: float = PATIENCE_SECONDS) -> Callable[[str], AsyncGenerator[WatchMessage]]:
        proxy: Any = self
        options = WatchOptions((), snapshot=True, before=False, latest_only=False)
        return lambda after: WatchStream(proxy, (APPLICATION, STATE), lambda: proxy, options, seconds, after).messages()


async def test_a_watch_that_only_ever_begins_ends_once_its_time_is_over() -> None:
    first = [said(b"", as_of_ms=5), said(b"x", as_of_ms=5), NoServer("nobody has key group 3")]
    again = [said(b"x", as_of_ms=5), said(b"x", as_of_ms=5), NoServer("nobody has key group 3")]
    for seconds in longer_and_longer(0.3):
        proxy = _Proxy(first, again)
        async with aclosing(proxy.watch(seconds)("")) as messages, asyncio.timeout(seconds + PATIENCE_SECONDS):
            with pytest.raises(NoServer):
                async for _ in messages:
                    pass
        if len(proxy.requests) > 1:  # on a slow machine there was no time for another
            break
    assert len(proxy.requests) > 1


async def test_a_proxy_that_is_silent_is_left_and_the_watch_goes_on_behind_what_it_has_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("keyhole.client.wire.watch_stream._SILENT_SECONDS", 0.2)
    last = said(as_of_ms=7)
    proxy = _Proxy([said(b"x", as_of_ms=5), SILENT], [last])
    async with aclosing(proxy.watch()("")) as messages, asyncio.timeout(PATIENCE_SECONDS):
        first = await anext(messages)
        second = await anext(messages)
    assert [request.token for request in proxy.requests] == ["", first.whole]
    assert second.whole == last.token


async def test_that_all_rows_were_given_is_known_where_the_break_comes_behind_the_last_one() -> None:
    proxy = _Proxy([said(b""), ServerLost("it is gone")], [said()])
    async with AsyncWatch(proxy.watch(), None) as changes:
        await changes.page()
        assert not changes.snapshot_done
        await changes.page()
        assert changes.snapshot_done
    # Whoever goes on from a token is told by the server alone: it may have had all rows before.
    proxy = _Proxy([said()])
    async with AsyncWatch(proxy.watch(), said().token) as changes:
        await changes.page()
        assert not changes.snapshot_done


async def test_a_watch_whose_token_has_expired_goes_on_with_what_is_shown_next_and_ends_where_that_is_refused() -> None:
    expired = Unauthenticated("not known", expired=True)
    proxy = _Proxy([said(b"", as_of_ms=1), expired], [said(b"x"), expired], [Unauthenticated("not known")])
    async with aclosing(proxy.watch()("")) as messages, asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(Unauthenticated):
            async for _ in messages:
                pass
    assert [bool(request.token) for request in proxy.requests] == [False, True, True]
    proxy = _Proxy([expired])
    with pytest.raises(Unauthenticated):
        await anext(proxy.watch()(""))
    assert len(proxy.requests) == 1


async def test_a_watch_whose_token_has_expired_late_is_as_patient_as_before() -> None:
    expired, cut_off = Unauthenticated("not known", expired=True), ServerLost("gone")
    for seconds in longer_and_longer(0.2):
        proxy = _Proxy([said(b"", as_of_ms=1), 1.5 * seconds, expired], [cut_off], [said(b"x", as_of_ms=2)])
        async with aclosing(proxy.watch(seconds)("")) as messages, asyncio.timeout(2 * seconds + PATIENCE_SECONDS):
            await anext(messages)
            with contextlib.suppress(ServerLost):
                await anext(messages)
                return
    pytest.fail("it has ended at once")


@pytest.mark.parametrize("made", ["a watch", "a scan"])
async def test_another_task_closes_a_stream_that_waits(made: str) -> None:
    ended: list[str] = []

    async def waits(*_: object) -> AsyncGenerator[Any]:
        try:
            yield await asyncio.sleep(PATIENCE_SECONDS)
        finally:
            ended.append(made)

    stream: Any = AsyncWatch(waits, None) if made == "a watch" else AsyncStateScan(waits, None, None)

    async def read() -> list[Any]:
        return [of async for of in stream]

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await stream.close()
        assert (await reading, ended) == ([], [made])
    assert not await stream.more()


async def test_whoever_is_cancelled_while_a_stream_waits_is_and_the_next_one_asks_anew() -> None:
    proxy = _Proxy([said(b"", as_of_ms=1), SILENT], [said(b"x", as_of_ms=2)])
    async with AsyncWatch(proxy.watch(), None) as changes, asyncio.timeout(PATIENCE_SECONDS):
        await changes.more()
        reading = asyncio.create_task(changes.more())
        await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await changes.more()


def test_the_token_between_two_changes_has_what_was_given_of_each_key_group() -> None:
    before, whole = (WatchPlace(dict.fromkeys(range(3), WatchMark(of, 1)), 5).token(descriptor(), 0) for of in (7, 30))
    parts = [
        pb.WatchedChanges(key_group=0, epoch=2, keys=[b"1", b"2"], numbers=[0, 3], begins=7),
        pb.WatchedChanges(key_group=1, epoch=2, keys=[b"3"], numbers=[1], begins=8),
        pb.WatchedChanges(key_group=0, epoch=3, keys=[b"4", b"5"], numbers=[0, 1], begins=20),
    ]
    none, all_of = WatchMark(7, 1), WatchMark(30, 1)
    expected = [
        (none, none),
        (WatchMark(7, 1, 1), none),
        (WatchMark(7, 1, 4), none),
        (WatchMark(7, 1, 4), all_of),
        (WatchMark(20, 2, 1), all_of),
        (all_of, all_of),
    ]

    def marks(message: WatchMessage) -> list[tuple[WatchMark, WatchMark]]:
        found = [watch_place(message.token(given), descriptor(), 0).marks for given in range(6)]
        assert {of[2] for of in found[:-1]} == {none}
        return [(of[0], of[1]) for of in found]

    changes = [StateChange(ChangeKind.PUT, n, None, n, None, False, 2, None, False) for n in range(5)]
    came = pb.WatchResponse(changes=parts, token=whole)
    assert marks(WatchMessage(changes, whole, (before, came), False, None, 2)) == expected
    # One without a token of its own is a part of something: what was given of it isn't given again either.
    came = pb.WatchResponse(changes=parts)
    second = WatchMark(8, 1, 2)
    found = marks(WatchMessage(changes, before, (before, came), False, None, 2).of_parts())
    assert found == [*expected[:3], (WatchMark(7, 1, 4), second), *((WatchMark(20, 2, of), second) for of in (1, 2))]
    del parts[0].numbers[:]
    found = marks(WatchMessage(changes, before, (before, pb.WatchResponse(changes=parts)), False, None, 2).of_parts())
    assert found[:3] == [(none, none)] * 3


async def test_a_page_of_which_one_value_does_not_fit_is_not_given_and_its_token_is_the_one_before() -> None:
    before = said().token
    part = pb.WatchedChanges(key_group=0, epoch=2, keys=[b"1", b"2", b"3"], numbers=[0, 1, 2], begins=7)
    changes = [StateChange(ChangeKind.PUT, n, None, n, None, False, 2, None, False) for n in (1, 2, 3)]
    message = WatchMessage(changes, said().token, (before, pb.WatchResponse(changes=[part])), False, None, 2)

    async def begin(after: str) -> AsyncGenerator[WatchMessage]:
        yield message

    def typed(row: int) -> int:
        if row == 3:
            raise ValueMismatch("3 does not fit")
        return row

    watch = AsyncWatch(begin, before, typed)
    with pytest.raises(ValueMismatch):
        await watch.page()
    assert watch.token == before
    given = watch.given()
    assert [next(given).value, next(given).value] == [1, 2]
    assert watch.token != before
