"""Whatever the sizes, and whatever is asked for together: every key gets its own answer, or its own error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole import AsyncClient
from keyhole.errors import TooLarge
from keyhole.model.read import Answer
from keyhole.model.state import ValueField, ValueSchema
from keyhole.rpc.frames import FRAME_BYTES, MAX_VALUE_BYTES
from keyhole.testing.fake_server import FakeServer
from tests.support.examples import examples
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import APPLICATION, KEY_GROUPS, descriptor
from tests.support.waiting import LONG_SECONDS

BLOBS = msgspec.structs.replace(
    descriptor("blobs", topic_id="topic-blobs"), value=ValueSchema(1, (ValueField("data", "binary"),))
)
SMALL = msgspec.structs.replace(descriptor("small", topic_id="topic-small"), value=BLOBS.value)
TOO_LARGE = MAX_VALUE_BYTES + 1
SIZES = st.sampled_from(
    [0, 10, 1000, 300_000, 300_000, FRAME_BYTES // 2, FRAME_BYTES + 1, 5 << 20, 15 << 20, TOO_LARGE]
)


class Reads:
    """A client behind a proxy with three servers, and one behind each of them alone."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self._open = AsyncExitStack()
        self.servers: list[FakeServer] = []
        self.runner.run(self._begin())

    async def _begin(self) -> None:
        self.servers = await self._open.enter_async_context(fake_servers("a", "b", "c"))
        for number, server in enumerate(self.servers):
            server.host(BLOBS, key_groups=range(number, KEY_GROUPS, 3))
            server.host(SMALL, {"small": _row(b"small")}, key_groups=range(number, KEY_GROUPS, 3))
        # Slow as the machine may be, no other copy has what a server has.
        proxy = proxy_of(*(server.address for server in self.servers), hop_seconds=LONG_SECONDS)
        self.client = AsyncClient((await self._open.enter_async_context(proxy)).address, timeout=LONG_SECONDS)
        self._open.push_async_callback(self.client.close)

    def hold(self, sizes: Sequence[int]) -> list[bytes | None]:
        """What each key has from now on."""
        data = [None if size == 0 else number.to_bytes(2, "big") * (size // 2 + 1) for number, size in enumerate(sizes)]
        for server in self.servers:
            state = server.states[BLOBS.application, BLOBS.state]
            state.rows.clear()
            for number, value in enumerate(data):
                if value is not None:
                    state.put(f"key-{number}", _row(value))
        return data

    def end(self) -> None:
        self.runner.run(self._open.aclose())
        self.runner.close()


def _row(data: bytes) -> bytes:
    return msgspec.msgpack.encode([1, data])


@pytest.fixture(scope="module")
def reads() -> Iterator[Reads]:
    made = Reads()
    yield made
    made.end()


@settings(max_examples=examples(40), deadline=None)
@given(
    sizes=st.lists(SIZES, min_size=1, max_size=20),
    calls=st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=40), min_size=1, max_size=4),
)
def test_every_key_gets_its_own_answer_or_error_whatever_is_asked_for_with_it(
    reads: Reads, sizes: list[int], calls: list[list[int]]
) -> None:
    data = reads.hold(sizes)

    async def many(numbers: list[int]) -> None:
        wanted = reads.client.get_many(APPLICATION, "blobs", [f"key-{number}" for number in numbers])
        refused = [place for place, number in enumerate(numbers) if _is_too_large(number)]
        if refused:
            with pytest.raises(TooLarge) as caught:
                await wanted
            assert int(caught.value.facts["index"]) in refused
        else:
            for number, answer in zip(numbers, await wanted, strict=True):
                _check(number, answer)

    async def one(number: int) -> None:
        wanted = reads.client.get(APPLICATION, "blobs", f"key-{number}")
        if _is_too_large(number):
            with pytest.raises(TooLarge):
                await wanted
        else:
            _check(number, await wanted)

    def _is_too_large(number: int) -> bool:
        return number < len(sizes) and sizes[number] == TOO_LARGE

    def _check(number: int, answer: Answer) -> None:
        expected = data[number] if number < len(data) else None
        assert answer.found == (expected is not None)
        assert expected is None or answer.value.data == expected

    async def small() -> None:
        assert (await reads.client.get(APPLICATION, "small", "small")).value.data == b"small"

    async def all_at_once() -> None:
        ones = [one(number) for number in range(len(sizes))]
        await asyncio.gather(*map(many, calls), *ones, *(small() for _ in range(5)))

    reads.runner.run(all_at_once())
