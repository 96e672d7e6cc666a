"""What all ways to read answer alike: clients of servers and proxies, straight to the servers, over HTTP, mirrors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest

from keyhole import AsyncClient, errors
from keyhole.errors import KeyholeError
from keyhole.model.state import StateDescriptor
from tests.support.backends import Backend, Fake, Real
from tests.support.entries import APPLICATION, STATE, hourly, hours, row
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import descriptor
from tests.support.refusals import longer_and_longer
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS
from tests.support.ways import WAYS, Found, Refused, Way, way_of

VALUES = msgspec.structs.replace(descriptor(), state=STATE)
"""As the map state of tests/support/entries.py, with one value per key."""

FIRST = {f"sensor-{number}": row(float(number)) for number in range(20)}
ENTRIES = hours("sensor-7", range(8)) | hours("sensor-70", [1]) | hours("sensor-", [2, 3])


class Served:
    """One of the ways, and the server at its back."""

    def __init__(self, name: str, way: Way, backend: Backend, some_key: Any) -> None:
        self.name, self.way, self.backend = name, way, backend
        self._some_key = some_key
        self._epoch = 1

    async def commit(self, rows: Mapping[Any, bytes | None]) -> None:
        """The next epoch: what is read from then on has it."""
        await self.backend.commit(rows)
        self._epoch += 1
        await self.way.reach(self._epoch, self._some_key)

    async def refusal(self, read: Any, kind: type[KeyholeError]) -> str:
        """The message of what ends a read, which is given its timeout in seconds. Until then nobody need say why."""
        for seconds in longer_and_longer(0.5):
            with pytest.raises(Refused) as caught:
                await read(seconds)
            if caught.value.reason != errors.DeadlineExceeded.reason:
                break
        assert caught.value.reason == kind.reason, caught.value
        return caught.value.message


@pytest.fixture(params=[(way, server) for server in ("fake", "state server") for way in WAYS], ids=", ".join)
def parts(request: pytest.FixtureRequest) -> tuple[str, str]:
    named: tuple[str, str] = request.param
    return named


@asynccontextmanager
async def served(parts: tuple[str, str], of: StateDescriptor, rows: Mapping[Any, bytes]) -> AsyncIterator[Served]:
    """The state at epoch 1, with these rows."""
    name, server = parts
    async with AsyncExitStack() as stack:
        backend: Backend
        if server == "fake":
            (fake,) = await stack.enter_async_context(fake_servers("server-a"))
            backend = Fake(fake)
        else:
            backend = Real(await stack.enter_async_context(state_server("server-a")))
        await backend.host(of)
        await backend.commit(rows)
        proxy = await stack.enter_async_context(proxy_of(backend.address, http="127.0.0.1:0"))
        some_key = next(iter(rows))
        async with AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
            # Until the proxy has heard of it: it waits for an epoch.
            await client.get(APPLICATION, STATE, some_key, min_epoch=1)
        way = await stack.enter_async_context(way_of(name, backend.address, proxy, some_key))
        yield Served(name, way, backend, some_key)


async def test_a_key_is_answered_with_its_value_and_its_epoch_and_an_absent_one_is_an_answer(
    parts: tuple[str, str],
) -> None:
    async with served(parts, VALUES, FIRST) as of:
        assert await of.way.get("sensor-7") == Found(7.0, 1)
        assert await of.way.get("nobody") == Found(None, 1)
        asked = ["sensor-9", "nobody", "sensor-0", "sensor-9"]
        assert await of.way.get_many(asked) == [Found(celsius, 1) for celsius in (9.0, None, 0.0, 9.0)]
        assert await of.way.get_many([]) == []


async def test_what_is_committed_is_read_whole_and_an_epoch_that_is_kept_by_its_number(parts: tuple[str, str]) -> None:
    async with served(parts, VALUES, FIRST) as of:
        await of.commit({"sensor-0": row(0.5), "sensor-1": None, "newly": row(1.5)})
        asked = ["sensor-0", "sensor-1", "newly", "sensor-2"]
        now = [Found(celsius, 2) for celsius in (0.5, None, 1.5, 2.0)]
        assert [await of.way.get(key) for key in asked] == await of.way.get_many(asked) == now
        assert await of.way.get_many(asked, consistency="snapshot") == now
        assert await of.way.get("sensor-0", min_epoch=2) == await of.way.get("sensor-0", as_of=2) == now[0]
        then = [Found(celsius, 1) for celsius in (0.0, 1.0, None, 2.0)]
        assert [await of.way.get(key, as_of=1) for key in asked] == await of.way.get_many(asked, as_of=1) == then
        for _ in range(2):
            await of.commit({"sensor-2": row(2.5)})
        message = await of.refusal(lambda seconds: of.way.get("sensor-0", as_of=1, timeout=seconds), errors.EpochGone)
        assert "2" in message


async def test_all_of_a_state_is_what_there_is_and_a_count_says_how_much_with_a_predicate_and_without(
    parts: tuple[str, str],
) -> None:
    def expected(celsius: Mapping[str, float], above: float | None = None) -> list[Any]:
        return sorted(((key, None, of) for key, of in celsius.items() if above is None or of > above), key=str)

    async with served(parts, VALUES, FIRST) as of:
        known = {f"sensor-{number}": float(number) for number in range(20)}
        for above in (None, 11.0, 99.0):
            assert await of.way.all(above) == expected(known, above)
            assert await of.way.count(above) == len(expected(known, above))
        # One comes into the predicate, one leaves it, one is new and one is gone.
        await of.commit({"sensor-0": row(50.0), "sensor-19": row(1.0), "newly": row(70.0), "sensor-18": None})
        known |= {"sensor-0": 50.0, "sensor-19": 1.0, "newly": 70.0}
        del known["sensor-18"]
        for above in (None, 11.0, 99.0):
            assert await of.way.all(above) == expected(known, above)
            assert await of.way.count(above) == len(expected(known, above))


async def test_the_entries_of_a_key_come_in_order_by_ranges_either_way_round_and_so_many(
    parts: tuple[str, str],
) -> None:
    async with served(parts, hourly(), ENTRIES) as of:
        for descending in (False, True):
            way = slice(None, None, -1 if descending else 1)

            async def found(key: str = "sensor-7", down: bool = descending, **bounds: int) -> list[Any]:
                read = await of.way.entries(key, descending=down, **bounds)
                assert all(celsius == map_key for map_key, celsius in read)
                return [map_key for map_key, _ in read]

            assert await found() == list(range(8))[way]
            assert await found(start=3, stop=6) == [3, 4, 5][way]
            assert await found(start=3) == [3, 4, 5, 6, 7][way]
            assert await found(stop=3) == [0, 1, 2][way]
            assert await found(limit=5) == list(range(8))[way][:5]
            assert await found(start=2, limit=1) == list(range(2, 8))[way][:1]
            assert await found("nobody") == await found(start=5, stop=5) == await found(start=6, stop=2) == []
        assert await of.way.get(("sensor-7", 3)) == Found(3.0, 1)
        assert await of.way.get_many([("sensor-7", 4), ("sensor-7", 9), ("sensor-", 2)]) == [
            Found(4.0, 1),
            Found(None, 1),
            Found(2.0, 1),
        ]
        assert await of.way.all() == sorted(((key, at, float(at)) for key, at in ENTRIES), key=str)
        await of.commit({("sensor-7", 0): None, ("sensor-7", 9): row(9.0), ("sensor-70", 1): None})
        assert await found() == [9, *range(7, 0, -1)]
        assert await found("sensor-70") == []
        assert await of.way.count() == len(ENTRIES) - 1


async def test_what_can_not_be_read_is_refused_by_the_same_name(parts: tuple[str, str]) -> None:
    async with served(parts, VALUES, FIRST) as of:

        async def refused(kind: type[KeyholeError], key: Any = "sensor-7", **bounds: Any) -> str:
            return await of.refusal(lambda seconds: of.way.get(key, timeout=seconds, **bounds), kind)

        assert "epoch 1" in await refused(errors.EpochNotReached, min_epoch=2)
        await refused(errors.EpochNotReached, as_of=9)
        await refused(errors.MalformedRequest, as_of=1, min_epoch=1)
        await refused(errors.MalformedRequest, stale="sometimes")
        message = await of.refusal(lambda _: of.way.entries("sensor-7"), errors.Unsupported)
        assert "value" in message
        # A key of more columns than the state has. Over HTTP a path has a text, which is one of them.
        message = await of.refusal(lambda _: of.way.get_many([("sensor-7", "b")]), errors.KeyMismatch)
        assert "sensor-7" not in message
        if of.name != "mirror":  # which has no store, and says that it is not there
            message = await of.refusal(lambda _: of.way.get_many(["s" * 3000]), errors.KeyTooLong)
            assert "sss" not in message
