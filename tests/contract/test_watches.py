"""What everyone who serves keyhole.v1.Query must answer to Watch: servers and the fake, and proxies in front."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from keyhole import AsyncClient, ChangeKind, StateChange, errors, field
from keyhole.model.state import KeyType, StateDescriptor
from tests.support.backends import Backend, Fake, Real
from tests.support.entries import hourly
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import APPLICATION, STATE, descriptor, row
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS

Rows = Mapping[Any, bytes | None]
PUT, DELETE = ChangeKind.PUT, ChangeKind.DELETE


class Served:
    """A service, the server at its back, and a client of the service."""

    def __init__(self, client: AsyncClient, backend: Backend) -> None:
        self.client, self.backend, self.epoch = client, backend, 0

    async def host(self, of: StateDescriptor, rows: Rows) -> None:
        """Until the service knows of it."""
        self.of = of
        await self.backend.host(of)
        await self.commit(rows)
        async with asyncio.timeout(LONG_SECONDS):  # a proxy hears of it a moment later
            while True:
                try:
                    await self.client.describe_state(of.application, of.state)
                except errors.KeyholeError:
                    await asyncio.sleep(0.005)
                else:
                    return

    async def commit(self, rows: Rows) -> None:
        await self.backend.commit(rows)
        self.epoch += 1

    def watch(self, *keys: Any, **options: Any) -> Any:
        return self.client.watch(self.of.application, self.of.state, *keys, **options)

    async def all_of(self, changes: Any) -> list[StateChange]:
        """What comes of all that is committed."""
        found: list[StateChange] = []
        async with asyncio.timeout(LONG_SECONDS):
            while changes.epoch < self.epoch:
                found += await changes.page()
        return found

    async def briefly(self, changes: Any) -> list[tuple[Any, ...]]:
        """The same, as kind, key and celsius, in the order of keys."""
        return sorted(map(brief, await self.all_of(changes)), key=str)

    async def refusal(self, *keys: Any, **options: Any) -> errors.KeyholeError:
        try:
            async with self.watch(*keys, **options) as changes, asyncio.timeout(LONG_SECONDS):
                while True:
                    await changes.page()
        except errors.KeyholeError as error:
            return error


def brief(change: StateChange) -> tuple[Any, ...]:
    key = change.key if change.map_key is None else (change.key, change.map_key)
    return (change.kind, key) if change.value is None else (change.kind, key, change.value.celsius)


def puts(rows: Mapping[Any, float]) -> list[tuple[Any, ...]]:
    return sorted(((PUT, key, celsius) for key, celsius in rows.items()), key=str)


@pytest.fixture(params=["fake", "fake behind a proxy", "state server", "state server behind a proxy"])
async def served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    # That nothing has changed is told at once.
    monkeypatch.setattr("keyhole.client.wire.watch_stream._PROGRESS_MS", 100)
    async with AsyncExitStack() as stack:
        backend: Backend
        if request.param.startswith("fake"):
            (server,) = await stack.enter_async_context(fake_servers("server-a"))
            backend = Fake(server)
        else:
            backend = Real(await stack.enter_async_context(state_server("server-a")))
        address = backend.address
        if request.param.endswith("proxy"):
            address = (await stack.enter_async_context(proxy_of(address))).address
        client = await stack.enter_async_context(AsyncClient(address, timeout=LONG_SECONDS))
        yield Served(client, backend)


def readings(celsius: Mapping[str, float]) -> dict[Any, bytes]:
    return {name: row(of) for name, of in celsius.items()}


async def test_an_entry_that_comes_into_a_predicate_is_a_change_and_one_that_leaves_it_is_a_deletion(
    served: Served,
) -> None:
    await served.host(descriptor(), readings({"cold": 1.0, "hot": 40.0, "warm": 20.0}))
    async with served.watch(where=field("celsius") > 30, before=True) as changes:
        assert await served.briefly(changes) == [(PUT, "hot", 40.0)]
        await served.commit(readings({"cold": 31.0, "hot": 41.0, "warm": 21.0, "new": 50.0, "newly": 5.0}))
        came = {change.key: change for change in await served.all_of(changes)}
        # Nothing of those that it is true of neither before nor now. What was before was in the watch, or is None.
        assert {key: (of.value.celsius, of.before and of.before.celsius) for key, of in came.items()} == {
            "cold": (31.0, None),
            "hot": (41.0, 40.0),
            "new": (50.0, None),
        }
        assert {of.before_known for of in came.values()} == {True}
        await served.commit({"cold": row(2.0), "hot": None, "warm": None, "new": row(51.0)})
        assert await served.briefly(changes) == [(DELETE, "cold"), (DELETE, "hot"), (PUT, "new", 51.0)]
        # Of an epoch of which nothing is selected the token moves on, too.
        before = changes.token
        await served.commit(readings({"cold": 3.0}))
        assert await served.briefly(changes) == []
        assert changes.token != before
        after = changes.token
    await served.commit(readings({"cold": 33.0, "warm": 3.0}))
    async with served.watch(where=field("celsius") > 30, after=after) as changes:
        assert await served.briefly(changes) == [(PUT, "cold", 33.0)]
    # The token is of this predicate.
    for other in ({}, {"where": field("celsius") > 31}, {"prefix": "c", "where": field("celsius") > 30}):
        refused = await served.refusal(after=after, **other)
        assert isinstance(refused, errors.MalformedRequest)
        assert "other keys" in refused.message
    # What is given of a row is not.
    async with served.watch(where=field("celsius") > 30, after=after, fields=["count"]) as changes:
        (change,) = await served.all_of(changes)
        assert dict(change.value) == {"count": 1}


async def test_what_is_selected_by_the_key_alone_is_never_a_deletion_of_what_was_not(served: Served) -> None:
    await served.host(descriptor(), readings({"a1": 1.0, "b1": 2.0}))
    async with served.watch(where=field("sensor") >= "b", snapshot=False) as changes:
        assert await served.briefly(changes) == []
        await served.commit({"a1": None, "b1": None, "b2": row(5.0)})
        assert await served.briefly(changes) == [(DELETE, "b1"), (PUT, "b2", 5.0)]
        token = changes.token
    async with served.watch(where=(field("sensor") >= "b") & (field("celsius") > 3), after=None) as changes:
        assert await served.briefly(changes) == [(PUT, "b2", 5.0)]
        await served.commit({"a2": row(9.0), "b2": row(1.0), "b3": row(1.0)})
        assert await served.briefly(changes) == [(DELETE, "b2")]
    async with served.watch(where=field("sensor") >= "b", after=token) as changes:
        assert await served.briefly(changes) == puts({"b2": 1.0, "b3": 1.0})


async def test_a_prefix_and_a_range_have_their_keys_alone_and_a_token_of_their_own(served: Served) -> None:
    first = {"s": 0.0, "s1": 1.0, "s11": 2.0, "s2": 3.0, "t": 4.0}
    await served.host(descriptor(), readings(first))

    def some(*names: str, of: Mapping[str, float] = first) -> list[tuple[Any, ...]]:
        return puts({name: of[name] for name in names})

    second = {name: 10 + of for name, of in first.items()}
    async with AsyncExitStack() as stack:
        by_prefix = await stack.enter_async_context(served.watch(prefix="s1"))
        by_range = await stack.enter_async_context(served.watch(start="s11", stop="t"))
        from_on = await stack.enter_async_context(served.watch(start="s2", where=field("celsius") < 14))
        assert await served.briefly(by_prefix) == some("s1", "s11")
        assert await served.briefly(by_range) == some("s11", "s2")
        assert await served.briefly(from_on) == some("s2", "t")
        await served.commit(readings(second))
        assert await served.briefly(by_prefix) == some("s1", "s11", of=second)
        assert await served.briefly(by_range) == some("s11", "s2", of=second)
        assert await served.briefly(from_on) == [(DELETE, "t"), (PUT, "s2", 13.0)]
        token = by_range.token
    await served.commit({"s1": None, "s11": None, "t": None})
    async with served.watch(start="s11", stop="t", after=token) as by_range:
        assert await served.briefly(by_range) == [(DELETE, "s11")]
    assert isinstance(await served.refusal(start="s11", after=token), errors.MalformedRequest)
    assert isinstance(await served.refusal(after=token), errors.MalformedRequest)
    assert isinstance(await served.refusal(prefix=7), errors.KeyMismatch)
    for contradiction in ({"prefix": "s", "start": "s"}, {"keys": ("s",), "prefix": "s"}):
        keys: Sequence[Any] = contradiction.pop("keys", ())  # type: ignore[assignment]
        with pytest.raises(errors.MalformedRequest):
            served.watch(*keys, **contradiction)


async def test_of_a_map_state_keys_predicates_on_map_keys_and_fields_go_together(served: Served) -> None:
    of = hourly(KeyType.INT)
    await served.host(of, {("s1", 1): row(1.0), ("s1", 2): row(2.0, 7), ("s2", 2): row(3.0), ("t", 2): row(4.0)})
    where = (field("m0") >= 2) & (field("count") == 7)
    async with served.watch("s1", where=where, fields=["celsius"], before=True) as changes:
        (there,) = await served.all_of(changes)
        assert (there.key, there.map_key, dict(there.value)) == ("s1", 2, {"celsius": 2.0})
        others = {("s1", 1): row(1.5, 7), ("s2", 3): row(9.0, 7)}
        await served.commit({**others, ("s1", 2): row(2.5), ("s1", 3): row(3.5, 7)})
        came = {change.map_key: change for change in await served.all_of(changes)}
        assert {map_key: (*brief(of)[::2], of.before and of.before.celsius) for map_key, of in came.items()} == {
            2: (DELETE, 2.0),
            3: (PUT, 3.5, None),
        }


async def test_a_watch_goes_on_behind_any_change_and_has_each_once(served: Served) -> None:
    await served.host(
        hourly(key_groups=4), {(f"s{sensor}", hour): row(1.0) for sensor in range(8) for hour in range(4)}
    )
    token, seen = None, list[tuple[Any, ...]]()

    async def some(count: int) -> None:
        nonlocal token
        async with asyncio.timeout(LONG_SECONDS), served.watch(after=token, where=field("m0") > 0) as changes:
            async for change in changes:
                seen.append((change.key, change.map_key, change.value and change.value.celsius, change.epoch))
                count -= 1
                if not count:
                    break
            token = changes.token

    await some(1)
    await some(23)
    for number in (3, 2, 4):
        await served.commit({(f"s{sensor}", hour): row(10.0 * number) for sensor in range(8) for hour in range(number)})
        await some(1)
        await some(5)
    await served.commit({("s0", 1): None})
    async with served.watch(after=token, where=field("m0") > 0) as changes:
        for change in await served.all_of(changes):
            seen.append((change.key, change.map_key, change.value and change.value.celsius, change.epoch))
    given = [(key, map_key, epoch) for key, map_key, _, epoch in seen]
    assert len(set(given)) == len(given)
    rows: dict[Any, Any] = {}
    for key, map_key, celsius, _ in seen:
        rows[key, map_key] = celsius
    expected = {(f"s{sensor}", hour): 40.0 for sensor in range(8) for hour in range(1, 4)}
    assert rows == expected | {("s0", 1): None}


async def test_what_can_not_be_selected_by_is_refused_by_its_name(served: Served) -> None:
    await served.host(descriptor(), readings({"a": 1.0}))
    for options in ({"where": field("colour") == "red"}, {"fields": ["colour"]}):
        refused = await served.refusal(**options)
        assert isinstance(refused, errors.ValueMismatch)
        assert "colour" in refused.message
    refused = await served.refusal(where=field("celsius") == "red")
    assert isinstance(refused, errors.ValueMismatch)
    assert "celsius" in refused.message
    with pytest.raises(errors.MalformedRequest):
        served.watch(where="celsius > 1")
    with pytest.raises(TypeError, match="keys_only"):
        served.watch(keys_only=True)
    assert (served.of.application, served.of.state) == (APPLICATION, STATE)
