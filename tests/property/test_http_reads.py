"""An answer over HTTP says what the Python client gets, for all key and value types."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from yarl import URL

from keyhole import AsyncClient
from keyhole.encoding.key_text import key_of, parse_key, text_of, typed
from keyhole.encoding.row_codec import encode_row
from keyhole.model.state import KeyColumn, StateDescriptor, StateKind, ValueField, ValueSchema
from tests.support.examples import examples
from tests.support.http_values import plain, python_of
from tests.support.key_strategies import COLUMNS, keys
from tests.support.proxies import fake_servers, proxy_of
from tests.support.waiting import LONG_SECONDS

_DAYS = st.dates().map(lambda day: day.toordinal() - dt.date(1970, 1, 1).toordinal())
_MICROS = st.datetimes(timezones=st.just(dt.UTC)).map(
    lambda moment: (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_LONG = st.integers(-(2**63), 2**63 - 1)
STORED: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-128, 127),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": _LONG,
    "float": st.floats(width=32),
    "double": st.floats(),
    "decimal(38,4)": st.decimals(-(10**30), 10**30, places=4).map(lambda number: format(number, "f")),
    "string": _TEXT,
    "binary": st.binary(max_size=8),
    "date": _DAYS,
    "timestamp": _MICROS,
    "timestamp_ntz": _MICROS,
    "array<bigint>": st.lists(st.none() | _LONG, max_size=3),
    "map<bigint,binary>": st.dictionaries(_LONG, st.none() | st.binary(max_size=4), max_size=3).map(
        lambda items: [list(item) for item in items.items()]
    ),
    "struct<at:timestamp,n:bigint,xs:array<double>>": st.tuples(_MICROS, _LONG, st.lists(st.floats(), max_size=2)).map(
        list
    ),
}
FIELDS = tuple(ValueField(f"v{number}", kind) for number, kind in enumerate(STORED))
ROWS = st.tuples(*(st.none() | of for of in STORED.values())).map(lambda values: encode_row(1, values))
KEYED = COLUMNS.flatmap(lambda columns: st.tuples(st.just(columns), st.lists(keys(columns), min_size=1, max_size=4)))
MAPPED = st.tuples(COLUMNS, COLUMNS).flatmap(
    lambda both: st.tuples(st.just(both), keys(both[0]), st.lists(keys(both[1]), max_size=6, unique=True))
)


class Stack:
    """A fake server, a real proxy, the Python client and an HTTP client, in one event loop."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self._numbers = itertools.count()
        self._open = AsyncExitStack()

    def start(self) -> None:
        self.runner.run(self._start())

    async def _start(self) -> None:
        (self.server,) = await self._open.enter_async_context(fake_servers("server-1"))
        proxy = await self._open.enter_async_context(proxy_of(self.server.address, http="127.0.0.1:0"))
        self.base = f"http://{proxy.http_address}"
        self.client = await self._open.enter_async_context(AsyncClient(proxy.address, timeout=LONG_SECONDS))
        self.http = await self._open.enter_async_context(aiohttp.ClientSession())

    def close(self) -> None:
        self.runner.run(self._open.aclose())
        self.runner.close()

    def host(self, **changes: Any) -> tuple[StateDescriptor, Any]:
        """A new state."""
        number = next(self._numbers)
        of = StateDescriptor("app", f"s{number}", "main", **changes, topic_id=f"t{number}")
        self.server.states.clear()
        return of, self.server.host(of)

    async def known(self, of: StateDescriptor) -> None:
        """The proxy has heard of it."""
        self.server.changed()
        async with asyncio.timeout(LONG_SECONDS):
            while not any(known.state == of.state for known in await self.client.list_states()):  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    async def get(self, path: str, **query: str) -> Any:
        url = URL(self.base + path, encoded=True).extend_query(query)
        async with self.http.get(url) as response:
            body = await response.read()
            assert response.status == 200, body
            return msgspec.json.decode(body)

    async def post(self, path: str, body: Any) -> Any:
        async with self.http.post(self.base + path, data=msgspec.json.encode(body)) as response:
            content = await response.read()
            assert response.status == 200, content
            return msgspec.json.decode(content)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    made = Stack()
    made.start()
    yield made
    made.close()


def same(one: Any, other: Any) -> bool:
    """Equal, where NaN equals itself and -0.0 is not 0.0."""
    if isinstance(one, float) and isinstance(other, float):
        return repr(one) == repr(other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def decoded(value: Any) -> Any:
    return {field.name: python_of(field.type, value[field.name]) for field in FIELDS}


def spelled(key: tuple[Any, ...]) -> str:
    """As a path has it. A dot could be taken for a step up."""
    return quote(text_of(key if len(key) > 1 else key[0]), safe="").replace(".", "%2E")


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(KEYED, ROWS)
def test_a_lookup_over_http_says_what_the_client_gets(
    stack: Stack, keyed: tuple[tuple[KeyColumn, ...], list[tuple[Any, ...]]], row: bytes
) -> None:
    columns, wanted = keyed
    of, hosted = stack.host(kind=StateKind.VALUE, key_groups=8, key=columns, value=ValueSchema(1, FIELDS))
    hosted.put(wanted[0], row)

    async def read() -> None:
        await stack.known(of)
        expected = await stack.client.get_many(of.application, of.state, wanted)
        path = f"/v1/{of.application}/{of.state}"
        one_by_one = [await stack.get(f"{path}/{spelled(key)}") for key in wanted]
        as_text = [await stack.get(f"{path}/{spelled(key)}", integers="text") for key in wanted]
        at_once = await stack.post(f"{path}:batchGet", {"keys": [[typed(part) for part in key] for key in wanted]})
        for answers in (one_by_one, as_text, at_once["answers"]):
            for answer, known in zip(answers, expected, strict=True):
                assert answer["found"] == known.found
                assert same(decoded(answer["value"]), plain(known.value)) if known.found else answer["value"] is None
                assert answer["source"]["epoch"] == known.epoch
                assert answer["source"]["server"] == known.server

    stack.runner.run(read())


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(MAPPED, ROWS, st.booleans(), st.integers(1, 7))
def test_a_scan_over_http_gives_the_entries_that_the_client_gets_page_by_page(
    stack: Stack,
    mapped: tuple[tuple[tuple[KeyColumn, ...], tuple[KeyColumn, ...]], tuple[Any, ...], list[tuple[Any, ...]]],
    row: bytes,
    descending: bool,
    limit: int,
) -> None:
    (columns, of_map), key, map_keys = mapped
    of_map = tuple(KeyColumn(f"m{number}", column.type) for number, column in enumerate(of_map))
    of, hosted = stack.host(kind=StateKind.MAP, key_groups=8, key=columns, map_key=of_map, value=ValueSchema(1, FIELDS))
    for map_key in map_keys:
        hosted.put((*key, *map_key), row)

    async def read() -> None:
        await stack.known(of)
        one_or_tuple = key[0] if len(key) == 1 else key
        expected = await stack.client.scan(of.application, of.state, one_or_tuple, descending=descending)
        path = f"/v1/{of.application}/{of.state}/{spelled(key)}"
        found: list[Any] = []
        query = {"limit": str(limit), "descending": str(descending).lower()}
        while True:
            page = await stack.get(path, **query)
            assert len(page["entries"]) <= limit
            found += page["entries"]
            if page["next"] is None:
                break
            query["to" if descending else "from"] = page["next"]
        assert [key_of(of_map, entry["map_key"]) for entry in found] == [entry.map_key for entry in expected]
        for entry, known in zip(found, expected, strict=True):
            assert same(decoded(entry["value"]), plain(known.value))
            map_key = text_of(known.map_key)
            (one,) = [await stack.get(path, map_key=map_key)]
            assert same(decoded(one["value"]), plain(known.value))

    stack.runner.run(read())


@given(KEYED)
def test_a_key_that_is_spelled_is_read_as_the_same_key(
    keyed: tuple[tuple[KeyColumn, ...], list[tuple[Any, ...]]],
) -> None:
    columns, wanted = keyed
    for key in wanted:
        one_or_tuple = key[0] if len(key) == 1 else key
        assert parse_key(columns, text_of(one_or_tuple)) == one_or_tuple
        assert key_of(columns, typed(key)) == one_or_tuple
