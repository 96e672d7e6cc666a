"""A watch whose changes of one epoch come in several responses: what another owner sends between them, and what becomes
of them where their own is lost there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

import pytest

from keyhole import AsyncClient
from keyhole.errors import NotReady
from keyhole.model.change import StateChange
from keyhole.testing.changelog import MemoryKafka
from keyhole.v1 import query_pb2 as pb
from services.state_server.servicers.watches import Watches
from tests.rpc.test_large_watches import BLOBS, blob, blobs, some_keys
from tests.support.proxies import proxy_of
from tests.support.readings import APPLICATION
from tests.support.state_servers import RunningServer, state_server
from tests.support.waiting import LONG_SECONDS, eventually

# Two rows of an epoch, which no response has together: the second one alone takes one.
SMALL, LARGE = 100_000, 2_060_000


class Between:
    """Where a server is that has sent the first of two parts of an epoch.

    Attributes:
        come: It is there.
        go: It goes on.
        lose: It ends the watch instead, once.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.come, self.go, self.lose = asyncio.Event(), asyncio.Event(), False
        responses = Watches.responses

        async def held(watches: Watches, request: pb.WatchRequest) -> AsyncGenerator[pb.WatchResponse]:
            async with aclosing(responses(watches, request)) as all_of_them:
                async for response in all_of_them:
                    yield response
                    if [len(value) for part in response.changes for value in part.values][-1:] == [len(blob(SMALL))]:
                        self.come.set()
                        await self.go.wait()
                        if self.lose:
                            self.lose = False
                            raise NotReady("the key group is on its way to another owner")

        monkeypatch.setattr(Watches, "responses", held)


class Pair(NamedTuple):
    """Two owners behind a proxy, and keys: two of one key group of the first one, and one of the other's."""

    first: RunningServer
    second: RunningServer
    client: AsyncClient
    small: str
    large: str
    other: str

    async def commit_both_parts(self) -> None:
        await self.first.commit_own({self.small: blob(SMALL), self.large: blob(LARGE)})


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    kafka, of = MemoryKafka(), blobs()
    half = of.key_groups // 2
    async with (
        state_server("server-a", kafka) as first,
        state_server("server-b", kafka) as second,
        proxy_of(first.address, second.address, timeout_seconds=LONG_SECONDS) as proxy,
        AsyncClient(proxy.address, timeout=LONG_SECONDS) as client,
    ):
        made = first.made_topic(of)
        await first.share(made, list(range(half)))
        await second.share(made, list(range(half, of.key_groups)))
        small, large = some_keys(of, [0], 2)
        (other,) = some_keys(of, range(half, of.key_groups), 1)
        for server in (first, second):
            await server.commit_own(dict.fromkeys((small, large, other), blob(1)))
        yield Pair(first, second, client, small, large, other)


async def some(watch: AsyncIterator[StateChange], count: int) -> list[str]:
    return [(await anext(watch)).key for _ in range(count)]


async def test_a_mirror_never_has_half_an_epoch_of_a_key_group_whatever_another_owner_sends_between_its_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    between = Between(monkeypatch)
    async with pair() as of, of.client.mirror(f"{APPLICATION}/{BLOBS}") as mirror:

        def shown(key: str) -> tuple[int, int]:
            answer = mirror.get(key)
            return len(answer.value.data), answer.source.epoch

        await eventually(lambda: shown(of.large) == (1, 1))
        await of.commit_both_parts()
        await between.come.wait()
        await of.second.commit_own({of.other: blob(2)})
        await eventually(lambda: shown(of.other) == (2, 2))
        assert (shown(of.small), shown(of.large)) == ((1, 1), (1, 1))
        between.go.set()
        await eventually(lambda: shown(of.large) == (LARGE, 2))
        assert shown(of.small) == (SMALL, 2)


async def test_a_token_between_two_parts_is_behind_the_first_whatever_another_owner_has_sent_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    between = Between(monkeypatch)
    async with pair() as of:
        watch = of.client.watch(APPLICATION, BLOBS)
        assert sorted(await some(aiter(watch), 3)) == sorted([of.small, of.large, of.other])
        await of.commit_both_parts()
        assert await some(aiter(watch), 1) == [of.small]
        await of.second.commit_own({of.other: blob(2)})
        assert await some(aiter(watch), 1) == [of.other]
        between.go.set()
        later = of.client.watch(APPLICATION, BLOBS, after=watch.token)
        await of.second.commit_own({of.other: blob(3)})
        assert sorted(await some(aiter(later), 2)) == sorted([of.large, of.other])


async def test_no_change_comes_twice_where_the_owner_is_lost_between_two_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    between = Between(monkeypatch)
    between.lose = True
    async with pair() as of:
        watch = aiter(of.client.watch(APPLICATION, BLOBS))
        await some(watch, 3)
        await of.commit_both_parts()
        assert await some(watch, 1) == [of.small]
        between.go.set()
        assert await some(watch, 1) == [of.large]
        assert not between.lose
        await of.second.commit_own({of.other: blob(2)})
        assert await some(watch, 1) == [of.other]
