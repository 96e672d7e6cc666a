"""What all ways to watch tell alike: a client, of a server or a proxy; server-sent events over HTTP; and a mirror."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

import aiohttp
import pytest
from yarl import URL

from keyhole import AsyncClient, errors, field
from keyhole.errors import KeyholeError
from services.client_proxy.app import ClientProxy
from tests.support.backends import Backend, Fake, Real
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import APPLICATION, STATE, descriptor, row
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS, eventually
from tests.support.ways import Refused

FIRST = {"cold": 1.0, "hot": 40.0, "warm": 20.0, "warmer": 25.0}
PARTS: dict[str, dict[str, Any]] = {
    "all": {},
    "two keys": {"keys": ("hot", "nobody")},
    "a prefix": {"prefix": "warm"},
    "a range": {"start": "d", "stop": "warmer"},
    "a predicate": {"hotter": 20.5},
    "a predicate in a range": {"start": "d", "hotter": 20.5},
}


class Watching(Protocol):
    """A watch that has begun."""

    async def until(self, epoch: int) -> dict[str, float]:
        """What its rows and changes have made, once all of the epoch has come: celsius by key."""

    @property
    def token(self) -> str: ...


class ByChanges:
    """Of a client."""

    def __init__(self, changes: Any) -> None:
        self._changes = changes
        self._held: dict[str, float] = {}

    async def until(self, epoch: int) -> dict[str, float]:
        async with asyncio.timeout(LONG_SECONDS):
            while self._changes.epoch < epoch:
                for change in await self._changes.page():
                    _take(self._held, change.key, None if change.value is None else change.value.celsius)
        return dict(self._held)

    @property
    def token(self) -> str:
        token: str = self._changes.token
        return token


class ByEvents:
    """Over HTTP. Each event says of which epoch all has come."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._held: dict[str, float] = {}
        self._epoch = 0
        self.token = ""

    async def until(self, epoch: int) -> dict[str, float]:
        async with asyncio.timeout(LONG_SECONDS):
            while self._epoch < epoch:
                await self._event()
        return dict(self._held)

    async def _event(self) -> None:
        fields: dict[str, str] = {}
        while (line := (await self._response.content.readline()).decode()) != "\n":
            assert line.endswith("\n"), "the stream has ended"
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name] = value
        if "event" not in fields:
            return
        body = json.loads(fields["data"])
        if fields["event"] == "error":
            raise Refused(body["reason"], body["detail"])
        self.token = fields["id"]
        for change in body.get("changes", ()):
            _take(self._held, change["key"], change["value"] and change["value"]["celsius"])
        self._epoch = body["complete_epoch"]


class ByCopy:
    """A mirror: what it shows."""

    def __init__(self, mirror: Any) -> None:
        self._mirror = mirror

    async def until(self, epoch: int) -> dict[str, float]:
        await self._mirror.wait_for(epoch, timeout=LONG_SECONDS)
        return {entry.key: entry.value.celsius for entry in self._mirror}


def _take(held: dict[str, float], key: str, celsius: float | None) -> None:
    if celsius is None:
        held.pop(key, None)
    else:
        held[key] = celsius


class Served:
    """One of the ways, and the server at its back."""

    def __init__(self, way: str, client: AsyncClient, http: aiohttp.ClientSession, proxy: ClientProxy) -> None:
        self.way, self._client, self._http = way, client, http
        self._url = f"http://{proxy.http_address}/v1/{APPLICATION}/{STATE}:watch"

    @asynccontextmanager
    async def watching(self, after: str = "", **part: Any) -> AsyncIterator[Any]:
        """Begun. Args: part: keys, prefix, start, stop, hotter. Raises Refused."""
        keys, hotter = part.pop("keys", ()), part.pop("hotter", None)
        if self.way == "over HTTP":
            names = {"start": "from", "stop": "to"}
            query = [(names.get(name, name), text) for name, text in part.items()] + [("key", key) for key in keys]
            query += [("where", f"celsius > {hotter}")] if hotter is not None else []
            query += [("after", after)] if after else []
            async with self._http.get(URL(self._url).with_query(query)) as response:
                if not response.ok:
                    body = await response.json(content_type=None)
                    raise Refused(body["reason"], body["detail"])
                yield ByEvents(response)
            return
        where = None if hotter is None else field("celsius") > hotter
        try:
            if self.way == "mirror":
                path = f"{APPLICATION}/{STATE}"
                async with self._client.mirror(path, *keys, where=where, timeout=LONG_SECONDS, **part) as mirror:
                    yield ByCopy(mirror)
            else:
                watch = self._client.watch(APPLICATION, STATE, *keys, where=where, after=after or None, **part)
                async with watch as changes:
                    yield ByChanges(changes)
        except KeyholeError as error:
            raise Refused(error.reason, error.message) from error

    async def refusal(self, kind: type[KeyholeError], **part: Any) -> None:
        with pytest.raises(Refused) as caught:
            async with self.watching(**part) as watching:
                await watching.until(99)
        assert caught.value.reason == kind.reason


class Stack:
    """Epochs at the back, and what each part of the state has after them."""

    def __init__(self, served: Served, backend: Backend) -> None:
        self.served, self._backend = served, backend
        self.epoch = 0
        self.model: dict[str, float] = {}

    async def commit(self, celsius: Mapping[str, float | None]) -> None:
        await self._backend.commit({key: None if of is None else row(of) for key, of in celsius.items()})
        for key, of in celsius.items():
            _take(self.model, key, of)
        self.epoch += 1

    def of(self, part: Mapping[str, Any]) -> dict[str, float]:
        """What a scan of the part gives."""
        keys, start, stop = part.get("keys"), part.get("start", ""), part.get("stop", "~")
        return {
            key: of
            for key, of in self.model.items()
            if (keys is None or key in keys)
            and key.startswith(part.get("prefix", ""))
            and start <= key < stop
            and of > part.get("hotter", -1.0)
        }


WAYS = ("client of a server", "client of a proxy", "over HTTP", "mirror")


@pytest.fixture(params=[(way, server) for server in ("fake", "state server") for way in WAYS], ids=", ".join)
async def stack(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stack]:
    # That nothing has changed is told at once.
    monkeypatch.setattr("keyhole.client.wire.watch_stream._PROGRESS_MS", 100)
    monkeypatch.setattr("services.client_proxy.http.event_stream.PROGRESS_MS", 100)
    way, server = request.param
    async with AsyncExitStack() as opened:
        backend: Backend
        if server == "fake":
            (fake,) = await opened.enter_async_context(fake_servers("server-a"))
            backend = Fake(fake)
        else:
            backend = Real(await opened.enter_async_context(state_server("server-a")))
        await backend.host(descriptor())
        proxy = await opened.enter_async_context(proxy_of(backend.address, http="127.0.0.1:0"))
        await eventually(lambda: proxy._directory.tables, LONG_SECONDS)
        address = backend.address if way == "client of a server" else proxy.address
        client = await opened.enter_async_context(AsyncClient(address, timeout=LONG_SECONDS))
        http = await opened.enter_async_context(aiohttp.ClientSession())
        made = Stack(Served(way, client, http, proxy), backend)
        await made.commit(FIRST)
        yield made


async def test_what_a_watch_has_made_of_its_rows_and_changes_is_what_a_scan_has_after_each_epoch(stack: Stack) -> None:
    async with AsyncExitStack() as opened:
        watches = {
            name: await opened.enter_async_context(stack.served.watching(**part)) for name, part in PARTS.items()
        }

        async def agree() -> None:
            for name, watching in watches.items():
                assert (name, await watching.until(stack.epoch)) == (name, stack.of(PARTS[name]))

        await agree()
        # Into each part, within it, out of it, and none of its business.
        await stack.commit({"cold": 30.0, "hot": 41.0, "warm": 21.0, "warmer": 2.0, "newly": 50.0})
        await agree()
        await stack.commit({"cold": None, "warm": None, "newly": 3.0, "hot": 4.0, "warmest": 99.0})
        await agree()
        await stack.commit({"elsewhere": 0.5})
        await agree()


async def test_a_watch_goes_on_behind_its_token_and_a_mirror_begins_anew_with_the_same(stack: Stack) -> None:
    part = PARTS["a predicate"]
    async with stack.served.watching(**part) as watching:
        before = await watching.until(1)
        assert before == stack.of(part)
        after = getattr(watching, "token", "")
    await stack.commit({"cold": 31.0, "hot": None, "warm": 2.0})
    await stack.commit({"cold": 32.0})
    async with stack.served.watching(after, **part) as watching:
        since = await watching.until(3)
        # Behind a token there are the changes alone, and what was deleted is one.
        assert since == (stack.of(part) if stack.served.way == "mirror" else {"cold": 32.0})
    if stack.served.way != "mirror":
        await stack.served.refusal(errors.MalformedRequest, after=after)
        await stack.served.refusal(errors.MalformedRequest, after="no-token")


async def test_what_can_not_be_watched_is_refused_by_the_same_name(stack: Stack) -> None:
    await stack.served.refusal(errors.MalformedRequest, prefix="w", start="w")
    await stack.served.refusal(errors.MalformedRequest, keys=("hot",), prefix="w")
