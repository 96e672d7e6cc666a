"""What whoever has copies of a state answers to each policy for stale reads, and to bounds: servers, a proxy, and a
client that asks the servers itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from keyhole import errors
from keyhole.encoding.codec import StateCodec
from keyhole.errors import KeyholeError
from keyhole.rpc import channels, status
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc
from keyhole.v1.state_pb2 import ROLE_OWNER, ROLE_STANDBY
from tests.support.copies import Copies, copies
from tests.support.direct_reads import service_that_asks_directly
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import APPLICATION, STATE, descriptor, row, rows
from tests.support.refusals import refusal_of
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS

REF = pb.StateRef(application=APPLICATION, state=STATE)
CODEC = StateCodec(descriptor())
KEY = pb.Key(parts=[pb.KeyPart(string="sensor-7")])
NEXT = {"sensor-7": row(8.0)}


class Served:
    """The two copies, of which there was none when it began, and before them a proxy, or a client that asks them."""

    def __init__(self, began_ms: int, copies: Copies, owner: Any, standby: Any, proxy: Any) -> None:
        self.began_ms, self.copies = began_ms, copies
        self.owner, self.standby, self.proxy = owner, standby, proxy

    async def get(self, stub: Any, seconds: float = LONG_SECONDS, **options: Any) -> pb.Answer:
        request = pb.GetRequest(state=REF, key=KEY, options=pb.ReadOptions(**options))
        response: pb.GetResponse = await stub.Get(request, timeout=seconds)
        return response.answer

    async def refusal(self, stub: Any, seconds: float = 5.0, **options: Any) -> KeyholeError:
        return await refusal_of(lambda deadline: self.get(stub, deadline, **options), seconds)


@pytest.fixture(
    params=[
        "fake",
        "state server",
        "fake, directly",
        "state server, directly",
        "state server by its lookup port, directly",
    ]
)
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    began_ms = _now_ms()
    async with AsyncExitStack() as stack:
        kind, _, directly = request.param.partition(", ")
        both = await stack.enter_async_context(copies(kind, descriptor(), rows(100)))
        before = (await stack.enter_async_context(proxy_of(*both.addresses))).address
        if directly:
            key = (APPLICATION, STATE, "sensor-7")
            service = service_that_asks_directly(before, *both.addresses, key=key)
            before = await stack.enter_async_context(service)
        stubs = [
            query_pb2_grpc.QueryStub(await stack.enter_async_context(channels.aio_channel(address)))
            for address in (*both.addresses, before)
        ]
        ready = Served(began_ms, both, *stubs)
        async with asyncio.timeout(LONG_SECONDS):  # the standby has caught up, and the proxy knows of both
            while not await _ready(ready):  # noqa: ASYNC110 - as a reader would
                await asyncio.sleep(0.01)
        yield ready


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _ready(served: Served) -> bool:
    try:
        followed = (await served.get(served.standby)).source.as_of_ms
        holdings = (await served.proxy.DescribeState(pb.DescribeStateRequest(state=REF))).holdings
    except grpc.aio.AioRpcError:
        return False
    return bool(followed) and {(h.source.role, h.ready) for h in holdings} == {(ROLE_OWNER, True), (ROLE_STANDBY, True)}


async def test_each_copy_says_what_it_is_and_of_when(served: Served) -> None:
    for stub, role in ((served.owner, ROLE_OWNER), (served.standby, ROLE_STANDBY)):
        answer = await served.get(stub)
        assert (answer.value, answer.source.role, answer.source.epoch) == (row(7.0), role, 1)
        assert served.began_ms <= answer.source.as_of_ms <= _now_ms()
        assert (answer.source.lag_epochs, answer.source.unconfirmed) == (0, False)


async def test_where_nothing_stale_is_wanted_only_a_confirmed_owner_answers(served: Served) -> None:
    assert (await served.get(served.owner, stale=pb.STALE_NEVER)).source.role == ROLE_OWNER
    assert isinstance(await served.refusal(served.standby, stale=pb.STALE_NEVER), errors.NotOwner)
    served.copies.silence_coordinator()
    assert isinstance(await served.refusal(served.owner, stale=pb.STALE_NEVER), errors.Unconfirmed)
    assert isinstance(await served.refusal(served.proxy, 0.5, stale=pb.STALE_NEVER), errors.Unconfirmed)
    for stub in (served.owner, served.proxy):
        assert (await served.get(stub)).source.unconfirmed


async def test_a_copy_that_is_older_than_the_bound_says_how_old_and_the_proxy_finds_one_that_is_not(
    served: Served,
) -> None:
    served.copies.age(1_000)
    error = await served.refusal(served.standby, max_staleness_ms=500_000)
    assert isinstance(error, errors.TooStale)
    assert float(error.facts["age_ms"]) >= 1_000_000
    for _ in range(5):
        answer = await served.get(served.proxy, stale=pb.STALE_ALWAYS, max_staleness_ms=500_000)
        assert answer.source.role == ROLE_OWNER


async def test_an_epoch_that_no_copy_has_is_waited_for_and_then_named(served: Served) -> None:
    error = await served.refusal(served.proxy, 0.5, min_epoch=2)
    assert isinstance(error, errors.EpochNotReached)
    assert error.facts["epoch"] == "1"
    waiting = asyncio.ensure_future(served.get(served.proxy, stale=pb.STALE_ALWAYS, min_epoch=2))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await served.copies.advance(NEXT)
    answer = await waiting
    assert (answer.value, answer.source.epoch) == (row(8.0), 2)


async def test_readers_of_any_copy_get_both(served: Served) -> None:
    roles = {(await served.get(served.proxy, stale=pb.STALE_ALWAYS)).source.role for _ in range(50)}
    assert roles == {ROLE_OWNER, ROLE_STANDBY}
    assert {(await served.get(served.proxy)).source.role for _ in range(10)} == {ROLE_OWNER}


async def test_when_the_owner_is_lost_the_standby_answers_where_it_may_and_the_reason_is_told_where_not(
    served: Served,
) -> None:
    await served.copies.advance(NEXT)
    reached = (await served.get(served.proxy)).source.epoch
    await served.copies.lose_owner()
    for _ in range(20):
        answer = await served.get(served.proxy, min_epoch=reached)
        assert (answer.value, answer.source.role, answer.source.epoch) == (row(8.0), ROLE_STANDBY, 2)
    error = await served.refusal(served.proxy, 0.5, stale=pb.STALE_NEVER)
    assert isinstance(error, errors.DeadlineExceeded)
    assert error.facts["cause"] in {"NO_SERVER", "SERVER_LOST"}


async def test_keys_that_cant_be_read_do_not_spoil_the_frame_that_they_travel_in() -> None:
    """On both kinds of server: only their own key groups' keys fail."""
    async with fake_servers("fake") as (fake,), state_server("real") as real:
        fake.host(descriptor(), rows(100), range(8))
        await real.own(descriptor(), range(8))
        await real.commit({name: stored for name, stored in rows(100).items() if CODEC.storage_key(name)[1] < 8})
        keys = [CODEC.storage_key(f"sensor-{number}") for number in range(100)]
        for address in (fake.address, real.address):
            async with channels.aio_channel(address) as channel:
                request = pb.LookupRequest(frame=1, state=REF, storage_keys=keys, topic_id="topic-1")
                call = query_pb2_grpc.QueryStub(channel).Lookup(iter([request]))
                (response,) = [message async for message in call]
            failed = {index for failure in response.failures for index in failure.indexes}
            assert failed == {index for index, key in enumerate(keys) if key[1] >= 8}
            assert {type(status.from_proto(failure.error)) for failure in response.failures} == {errors.NotOwner}
            for number, (key, value) in enumerate(zip(keys, response.values, strict=True)):
                assert value == (row(float(number)) if key[1] < 8 else b"")
                assert response.sources[response.source_of[number] if response.source_of else 0].epoch == 1


async def test_a_policy_of_a_later_version_is_refused_and_not_weakened(served: Served) -> None:
    for stub in (served.owner, served.proxy):
        assert isinstance(await served.refusal(stub, stale=9), errors.Unsupported)
