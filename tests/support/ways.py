"""The ways in which a reader reads: by a client, straight from the servers, over HTTP, and of a mirror. What they read
is told alike, and so is what they are refused with.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple, Protocol

import aiohttp
from yarl import URL

from keyhole import AsyncClient, field
from keyhole.encoding.key_text import text_of, typed
from keyhole.errors import KeyholeError
from keyhole.model.predicates import Predicate
from services.client_proxy.app import ClientProxy
from tests.support.direct_reads import until_reached
from tests.support.entries import APPLICATION, STATE
from tests.support.waiting import LONG_SECONDS

PATH = f"/v1/{APPLICATION}/{STATE}"


class Found(NamedTuple):
    """An answer: celsius, None where the key is absent, and the epoch that it names."""

    celsius: float | None
    epoch: int


class Refused(Exception):
    """A read was; `reason` is that of keyhole.errors."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason, self.message = reason, message


_HTTP_NAMES = {"start": "from", "stop": "to"}

Entry = tuple[Any, Any, float]
"""Key, map key (None: the state has one value per key), celsius."""


class Way(Protocol):
    """Of the state of tests/support/entries.py, or of one of its name with one value per key.

    `bounds` are min_epoch, as_of, stale, max_staleness and timeout, as clients take them; of look-ups of many keys also
    consistency. All raise Refused.
    """

    async def get(self, key: Any, **bounds: Any) -> Found: ...

    async def get_many(self, keys: Sequence[Any], **bounds: Any) -> list[Found]: ...

    async def entries(self, key: Any, **options: Any) -> list[tuple[Any, float]]:
        """Map keys and celsius, in order. `options`: start, stop, descending, limit."""

    async def all(self, hotter: float | None = None) -> list[Entry]:
        """All that there is, or of which celsius is above that; sorted."""

    async def count(self, hotter: float | None = None) -> int: ...

    async def reach(self, epoch: int, key: Any) -> None:
        """What is read from then on is of this epoch, or of a later one. `key`: any that can be asked for."""


def _where(hotter: float | None) -> Predicate | None:
    return None if hotter is None else field("celsius") > hotter


class ByClient:
    """A client, of a server or a proxy, or straight."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def get(self, key: Any, **bounds: Any) -> Found:
        return _found(await _read(lambda: self._client.get(APPLICATION, STATE, key, **bounds)))

    async def get_many(self, keys: Sequence[Any], **bounds: Any) -> list[Found]:
        return [_found(of) for of in await _read(lambda: self._client.get_many(APPLICATION, STATE, keys, **bounds))]

    async def entries(self, key: Any, **options: Any) -> list[tuple[Any, float]]:
        found = await _read(lambda: self._client.scan(APPLICATION, STATE, key, **options))
        return [(entry.map_key, entry.value.celsius) for entry in found]

    async def all(self, hotter: float | None = None) -> list[Entry]:
        try:
            async with self._client.scan_all(APPLICATION, STATE, where=_where(hotter)) as scan:
                return sorted([(of.key, of.map_key, of.value.celsius) async for of in scan], key=str)
        except KeyholeError as error:
            raise Refused(error.reason, error.message) from error

    async def count(self, hotter: float | None = None) -> int:
        found: int = await _read(lambda: self._client.count(APPLICATION, STATE, where=_where(hotter)))
        return found

    async def reach(self, epoch: int, key: Any) -> None:
        await self.get(key, min_epoch=epoch)


class ByMirror:
    """Mirrors of the state, of all keys and of those that are asked for; what may ask a server does."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._mirrors: dict[float | None, Any] = {}
        self._open = AsyncExitStack()

    async def close(self) -> None:
        await self._open.aclose()

    async def _mirror(self, hotter: float | None = None) -> Any:
        if hotter not in self._mirrors:
            mirror = self._client.mirror(f"{APPLICATION}/{STATE}", where=_where(hotter), timeout=LONG_SECONDS)
            self._mirrors[hotter] = await _read(lambda: self._open.enter_async_context(mirror))
        return self._mirrors[hotter]

    async def get(self, key: Any, **bounds: Any) -> Found:
        mirror = await self._mirror()
        return _found(await _read(lambda: mirror.fetch(key, **bounds)))

    async def get_many(self, keys: Sequence[Any], **bounds: Any) -> list[Found]:
        mirror = await self._mirror()
        # A copy has all keys as of one moment: it takes no consistency.
        snapshot = bounds.pop("consistency", "committed") == "snapshot"
        try:
            answers = mirror.get_many(keys) if snapshot else await mirror.fetch_many(keys, **bounds)
        except KeyholeError as error:
            raise Refused(error.reason, error.message) from error
        return [_found(of) for of in answers]

    async def entries(self, key: Any, **options: Any) -> list[tuple[Any, float]]:
        mirror = await self._mirror()
        try:
            return [(entry.map_key, entry.value.celsius) for entry in mirror.scan(key, **options)]
        except KeyholeError as error:
            raise Refused(error.reason, error.message) from error

    async def all(self, hotter: float | None = None) -> list[Entry]:
        return sorted(((of.key, of.map_key, of.value.celsius) for of in await self._mirror(hotter)), key=str)

    async def count(self, hotter: float | None = None) -> int:
        return len(await self._mirror(hotter))

    async def reach(self, epoch: int, key: Any) -> None:
        await self._mirror()
        for mirror in self._mirrors.values():
            await mirror.wait_for(epoch, timeout=LONG_SECONDS)


class ByHttp:
    """The JSON API of a proxy, page by page where there are pages."""

    def __init__(self, http: aiohttp.ClientSession, proxy: ClientProxy) -> None:
        self._http, self._base = http, f"http://{proxy.http_address}"

    async def get(self, key: Any, **bounds: Any) -> Found:
        first, *rest = key if isinstance(key, tuple) else (key,)
        query = {"map_key": text_of(rest[0])} if rest else {}
        return self._found(await self._ask(f"{PATH}/{text_of(first)}", query | _texts(bounds)))

    async def get_many(self, keys: Sequence[Any], **bounds: Any) -> list[Found]:
        spelled = [[typed(part) for part in (key if isinstance(key, tuple) else (key,))] for key in keys]
        body = await self._ask(f"{PATH}:batchGet", _texts(bounds), {"keys": spelled})
        return [self._found(answer) for answer in body["answers"]]

    async def entries(self, key: Any, **options: Any) -> list[tuple[Any, float]]:
        limit = options.pop("limit", None)
        query = {_HTTP_NAMES.get(name, name): text for name, text in _texts(options).items()}
        found: list[tuple[Any, float]] = []
        while limit is None or len(found) < limit:
            # Three at a time, so that there are several pages.
            query["limit"] = str(3 if limit is None else min(3, limit - len(found)))
            page = await self._ask(f"{PATH}/{text_of(key)}", query)
            found += [(entry["map_key"], entry["value"]["celsius"]) for entry in page["entries"]]
            if page["next"] is None:
                break
            query["to" if query.get("descending") == "true" else "from"] = page["next"]
        return found

    async def all(self, hotter: float | None = None) -> list[Entry]:
        query, found = {"limit": "7"} | _hotter(hotter), list[Entry]()
        while True:
            page = await self._ask(f"{PATH}:scan", query)
            found += [(of["key"], of.get("map_key"), of["value"]["celsius"]) for of in page["entries"]]
            if page["next"] is None:
                return sorted(found, key=str)
            query["after"] = page["next"]

    async def count(self, hotter: float | None = None) -> int:
        found: int = (await self._ask(f"{PATH}:aggregate", {"of": "count"} | _hotter(hotter)))["values"]["count"]
        return found

    async def reach(self, epoch: int, key: Any) -> None:
        await self.get(key, min_epoch=epoch)

    async def _ask(self, path: str, query: dict[str, str], body: Any = None) -> Any:
        url = URL(self._base + path).with_query(query)
        async with self._http.request("GET" if body is None else "POST", url, json=body) as response:
            content = await response.json(content_type=None)
            if not response.ok:
                raise Refused(content["reason"], content["detail"])
            return content

    def _found(self, answer: Any) -> Found:
        celsius = answer["value"]["celsius"] if answer["found"] else None
        return Found(celsius, answer["source"]["epoch"])


def _texts(options: dict[str, Any]) -> dict[str, str]:
    return {name: text_of(of) if not isinstance(of, float) else str(of) for name, of in options.items()}


def _hotter(hotter: float | None) -> dict[str, str]:
    return {} if hotter is None else {"where": f"celsius > {hotter}"}


def _found(answer: Any) -> Found:
    return Found(answer.value.celsius if answer.found else None, answer.epoch)


async def _read(read: Callable[[], Awaitable[Any]]) -> Any:
    """What is refused at the call is refused, too."""
    try:
        return await read()
    except KeyholeError as error:
        raise Refused(error.reason, error.message) from error


WAYS = ("client of a server", "client of a proxy", "straight to the server", "over HTTP", "mirror")


@asynccontextmanager
async def way_of(name: str, server: str, proxy: ClientProxy, key: Any) -> AsyncIterator[Way]:
    """One of WAYS, to a state that the proxy knows.

    Args:
        key: Any that can be asked for.
        server: Its address.
        proxy: One in front of it, which also answers over HTTP.
    """
    async with AsyncExitStack() as stack:
        address = server if name == "client of a server" else proxy.address
        routing = "direct" if name == "straight to the server" else "proxy"
        if name == "over HTTP":
            yield ByHttp(await stack.enter_async_context(aiohttp.ClientSession()), proxy)
            return
        client = await stack.enter_async_context(AsyncClient(address, timeout=LONG_SECONDS, routing=routing))
        if name == "mirror":
            mirror = ByMirror(client)
            stack.push_async_callback(mirror.close)
            yield mirror
            return
        way = ByClient(client)
        if routing == "direct":
            await way.reach(0, key)
            await until_reached(client, server)
        yield way
