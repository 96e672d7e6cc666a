"""One Lookup stream of a proxy: frames in, answers out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from keyhole.client.wire.segments import Answers
from keyhole.clock import SystemClock
from keyhole.errors import Draining, MalformedRequest, Overloaded
from keyhole.rpc import status
from keyhole.rpc.read_admission import ReadCall
from keyhole.rpc.read_requests import MAX_KEYS_PER_REQUEST
from keyhole.v1 import error_pb2, state_pb2
from keyhole.v1 import query_pb2 as pb
from services.client_proxy.grpc.lookup_session import LookupSession, Respond, answering, refusal
from services.client_proxy.grpc.query_servicer import ProxyServicer
from tests.support.waiting import PATIENCE_SECONDS


class _Work:
    """Keeps frames until the test answers them."""

    def __init__(self, *, at_once: bool = False, value_bytes: int = 0) -> None:
        self.started: list[int] = []
        self._value_bytes = value_bytes
        self._at_once = at_once
        self._open: dict[int, Respond] = {}

    def handle(self, request: pb.LookupRequest, respond: Respond) -> None:
        self.started.append(request.frame)
        self._open[request.frame] = respond
        if self._at_once:
            self.answer(request.frame)

    def answer(self, frame: int) -> None:
        self._open.pop(frame)(pb.LookupResponse(frame=frame), self._value_bytes)


async def _requests(count: int, end: asyncio.Event | None = None) -> AsyncIterator[pb.LookupRequest]:
    for frame in range(1, count + 1):
        yield pb.LookupRequest(frame=frame)
    if end is not None:
        await end.wait()


async def test_answers_leave_in_the_order_in_which_they_come_and_the_stream_ends_after_the_last() -> None:
    work = _Work()
    responses = LookupSession(work.handle).run(_requests(3))
    first = asyncio.ensure_future(anext(responses))
    while len(work.started) < 3:  # noqa: ASYNC110 - some turns of the loop
        await asyncio.sleep(0)
    for frame in (2, 3, 1):
        work.answer(frame)
    assert [(await first).frame, *[response.frame async for response in responses]] == [2, 3, 1]


async def test_a_draining_session_answers_what_is_under_way_and_ends() -> None:
    work, never = _Work(), asyncio.Event()
    session = LookupSession(work.handle)
    responses = session.run(_requests(1, never))
    first = asyncio.ensure_future(anext(responses))
    while not work.started:  # noqa: ASYNC110 - some turns of the loop
        await asyncio.sleep(0)
    session.drain()
    await asyncio.sleep(0)
    assert not first.done()
    work.answer(1)
    assert (await first).frame == 1
    assert [response async for response in responses] == []


async def test_a_draining_session_refuses_a_frame_that_comes_later_though_one_is_still_under_way() -> None:
    work, drained, read_on = _Work(), asyncio.Event(), asyncio.Event()

    async def requests() -> AsyncIterator[pb.LookupRequest]:
        yield pb.LookupRequest(frame=1)
        await drained.wait()
        read_on.set()
        yield pb.LookupRequest(frame=2)

    session = LookupSession(work.handle)
    responses = session.run(requests())
    first = asyncio.ensure_future(anext(responses))
    while not work.started:  # noqa: ASYNC110 - some turns of the loop
        await asyncio.sleep(0)
    session.drain()
    drained.set()
    await read_on.wait()
    refused = await first
    assert refused.frame == 2
    assert isinstance(status.from_proto(refused.failures[0].error), Draining)
    assert work.started == [1]
    work.answer(1)
    assert [response.frame async for response in responses] == [1]
    assert work.started == [1]


async def test_an_idle_session_that_drains_ends_at_once() -> None:
    session = LookupSession(_Work().handle)
    session.drain()
    assert [response async for response in session.run(_requests(0, asyncio.Event()))] == []


async def test_a_client_that_sends_but_does_not_read_is_not_read_from_for_ever() -> None:
    work = _Work(at_once=True)
    responses = LookupSession(work.handle).run(_requests(1000))
    await anext(responses)
    for _ in range(2000):
        await asyncio.sleep(0)
    assert len(work.started) < 100
    assert len([response async for response in responses]) == 999


async def test_a_client_that_does_not_read_large_answers_is_not_read_from_after_a_few() -> None:
    work = _Work(at_once=True, value_bytes=1 << 20)
    responses = LookupSession(work.handle).run(_requests(1000))
    await anext(responses)
    for _ in range(2000):
        await asyncio.sleep(0)
    assert len(work.started) < 12
    assert len([response async for response in responses]) == 999


async def test_answers_to_frames_that_were_taken_before_are_given_up_where_they_are_too_much_to_keep() -> None:
    work = _Work(value_bytes=10 << 20)
    responses = LookupSession(work.handle).run(_requests(20))
    first = asyncio.ensure_future(anext(responses))
    while len(work.started) < 20:  # noqa: ASYNC110 - some turns of the loop
        await asyncio.sleep(0)
    for frame in range(1, 21):
        work.answer(frame)
    answers = [await first, *[response async for response in responses]]
    assert [response.frame for response in answers] == list(range(1, 21))
    refused = [response for response in answers if response.failures]
    assert [response.frame for response in refused] == list(range(7, 21))
    assert {response.failures[0].error.reason for response in refused} == {error_pb2.REASON_OVERLOADED}
    assert "have not been read" in refused[0].failures[0].error.message


async def test_what_breaks_the_requests_breaks_the_stream() -> None:
    async def broken() -> AsyncIterator[pb.LookupRequest]:
        yield pb.LookupRequest(frame=1)
        raise ValueError("garbage")

    responses = LookupSession(_Work(at_once=True).handle).run(broken())
    assert (await anext(responses)).frame == 1
    with pytest.raises(ValueError, match="garbage"):
        await anext(responses)


def test_what_one_server_has_answered_is_passed_on_as_it_came_under_the_callers_number() -> None:
    came = pb.LookupResponse(frame=7, values=[b"a", b""], sources=[state_pb2.Source(server="s")])
    sent: list[pb.LookupResponse] = []
    answering(3, lambda response, size=0, /: sent.append(response))(Answers([b"a", b""], came.sources, message=came))
    assert sent == [pb.LookupResponse(frame=3, values=[b"a", b""], sources=[state_pb2.Source(server="s")])]


def test_a_refusal_has_no_more_values_than_a_frame_may_have_keys() -> None:
    refused = refusal(pb.LookupRequest(frame=7, storage_keys=[b""] * 1_000_000), MalformedRequest("too many"))
    assert (refused.frame, len(refused.values)) == (7, MAX_KEYS_PER_REQUEST)


async def test_a_stream_that_is_given_up_while_its_answer_is_written_begins_nothing_behind_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: asyncio.Queue[pb.LookupRequest] = asyncio.Queue()

    async def requests() -> AsyncIterator[pb.LookupRequest]:
        while True:
            yield await sent.get()

    directory: Any = SimpleNamespace(clock=SystemClock(), tables={})
    servicer, begun = ProxyServicer(directory, PATIENCE_SECONDS), list[tuple[int, int]]()
    admission = servicer.admission

    def begin(call: ReadCall, keys: int, *_: int) -> None:
        begun.append((keys, admission.calls))
        raise Overloaded("the proxy has enough")

    monkeypatch.setattr(admission, "begin", begin)
    context: Any = SimpleNamespace(peer=lambda: "ipv4:10.0.0.1:5000", time_remaining=lambda: None)
    responses: Any = servicer.Lookup(requests(), context)
    sent.put_nowait(pb.LookupRequest(frame=1, storage_keys=[b"k"]))
    assert (await anext(responses)).frame == 1
    sent.put_nowait(pb.LookupRequest(frame=2, storage_keys=[b"k"] * 7))
    await responses.aclose()
    for _ in range(20):
        await asyncio.sleep(0)
    assert (begun, admission.calls) == ([(1, 1)], 0)
