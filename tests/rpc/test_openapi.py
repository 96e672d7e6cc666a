"""The OpenAPI document is true: it is valid, has every path of the server, and each of its examples is answered so."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import date
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from keyhole.errors import InvalidConfiguration
from keyhole.testing.fake_server import FakeServer
from services.client_proxy.app import ClientProxy
from services.client_proxy.http.cors import checked_origins
from services.client_proxy.http.openapi import document
from services.client_proxy.http.openapi_shapes import DAILY, RULES, TOTALS, source
from tests.support.proxies import fake_servers, proxy_of
from tests.support.waiting import eventually

DOCUMENT = document("0.1.0")
PAGE_ORIGIN = "https://app.example.com"
# Of answers: what the time of day and the fake server decide.
_NOT_COMPARED = ("commit_time", "as_of", "staleness_seconds")


@dataclass
class Shop:
    """The states of the examples, behind a proxy."""

    proxy: ClientProxy
    server: FakeServer
    http: aiohttp.ClientSession

    def url(self, path: str) -> str:
        return f"http://{self.proxy.http_address}{path}"


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    async with (
        fake_servers("server-0") as (server,),
        proxy_of(server.address, http="127.0.0.1:0", http_origins=(PAGE_ORIGIN,)) as proxy,
        aiohttp.ClientSession() as http,
    ):
        server.host(TOTALS, {"c1": msgspec.msgpack.encode([1, 3, 42.5])})
        daily = server.host(DAILY)
        for day, orders in ((20, 1), (21, 2)):
            daily.put(("c1", date(2026, 11, day)), msgspec.msgpack.encode([1, orders]))
        server.host(RULES, {"free-shipping": msgspec.msgpack.encode([1, 30])})
        for state in server.states.values():
            state.epoch = source()["epoch"]
        server.changed()
        await eventually(lambda: len(proxy._directory.tables) == 3)
        yield Shop(proxy, server, http)


def _operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    return ((path, method, found) for path, methods in DOCUMENT["paths"].items() for method, found in methods.items())


def _resolved(of: dict[str, Any]) -> dict[str, Any]:
    found: Any = DOCUMENT
    for name in of["$ref"].split("/")[1:] if "$ref" in of else []:
        found = found[name]
    return found if "$ref" in of else of


def _check(schema: dict[str, Any], body: object) -> None:
    checker = Draft202012Validator.FORMAT_CHECKER
    Draft202012Validator({**schema, "components": DOCUMENT["components"]}, format_checker=checker).validate(body)


def _compared(body: Any) -> Any:
    if isinstance(body, list):
        return [_compared(item) for item in body]
    if isinstance(body, dict):
        return {name: _compared(item) for name, item in body.items() if name not in _NOT_COMPARED}
    return body


def _request(path: str, operation: dict[str, Any], example: str) -> tuple[str, Any]:
    """The address and the body of an example."""
    query = []
    for parameter in map(_resolved, operation.get("parameters", [])):
        value = parameter.get("examples", {}).get(example, {}).get("value")
        if value is None:
            assert parameter["in"] in ("query", "header"), f"{example} of {path} gives no {parameter['name']}"
        elif parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", quote(value, safe=""))
        else:
            values = value if isinstance(value, list) else [value]
            query += [f"{parameter['name']}={quote(str(one), safe='')}" for one in values]
    body = operation.get("requestBody")
    given = body["content"]["application/json"]["examples"][example]["value"] if body else None
    return path + ("?" + "&".join(query) if query else ""), given


def test_the_document_is_valid() -> None:
    validate(DOCUMENT, cls=OpenAPIV31SpecValidator)
    names = [operation["operationId"] for _, _, operation in _operations()]
    assert len(names) == len(set(names))


async def test_every_path_of_the_server_is_in_the_document_and_each_example_is_answered_so(shop: Shop) -> None:
    assert shop.proxy._reads is not None
    served = {
        (route.resource.canonical, route.method.lower())
        for route in shop.proxy._reads.app.router.routes()
        # HEAD is in the description. The console's paths are its pages' own, and / leads to them.
        if route.resource is not None
        and route.method != "HEAD"
        and not re.match("/(console|$)", route.resource.canonical)
    }
    assert {(path, method) for path, method, _ in _operations()} == served
    asked = 0
    for path, method, operation in _operations():
        kind, content = next(iter(operation["responses"]["200"]["content"].items()))
        for name, example in content.get("examples", {}).items():
            address, body = _request(path, operation, name)
            async with shop.http.request(method, shop.url(address), json=body) as response:
                text = await response.text()
                assert (response.status, response.content_type) == (200, kind), (address, text)
            answered = json.loads(text) if kind == "application/json" else text
            for one in (answered, example["value"]):
                _check(content["schema"], one)
            assert _compared(answered) == _compared(example["value"]), address
            if body is not None:
                _check(operation["requestBody"]["content"]["application/json"]["schema"], body)
            asked += 1
    assert asked >= 12
    async with shop.http.get(shop.url("/openapi.json")) as response:
        said = await response.json()
        assert said | {"info": {}} == DOCUMENT | {"info": {}}


async def test_what_the_document_says_of_parameters_and_refusals_holds(shop: Shop) -> None:
    """No parameter is missing in it, the bounds are those of the server, and a refusal is one that it lists."""
    async with shop.http.get(shop.url("/v1/shop/totals/c1?nothing=1")) as response:
        known = set((await response.json(content_type=None))["detail"].partition("there are ")[2].split(", "))
    read = DOCUMENT["paths"]["/v1/{application}/{state}/{key}"]["get"]
    parameters = {one["name"]: one for one in map(_resolved, read["parameters"])}
    assert {name for name, one in parameters.items() if one["in"] == "query"} == known
    inside = "stale=always&max_staleness=4294967296&min_epoch=7&timeout=300&integers=text"
    async with shop.http.get(shop.url(f"/v1/shop/totals/c1?{inside}")) as response:
        assert (response.status, (await response.json())["value"]) == (200, {"orders": "3", "spent": 42.5})
    for name, outside in {
        "stale": "x",
        "max_staleness": (1 << 32) + 1024,
        "min_epoch": parameters["min_epoch"]["schema"]["maximum"] + 1,
        "timeout": parameters["timeout"]["schema"]["maximum"] + 1,
        "integers": "x",
    }.items():
        assert not Draft202012Validator(parameters[name]["schema"]).is_valid(outside)
        await _refused(shop, read, f"/v1/shop/totals/c1?{name}={outside}", 400)
    for limit in (0, parameters["limit"]["schema"]["maximum"] + 1):
        await _refused(shop, read, f"/v1/shop/daily/c1?limit={limit}", 400)
    await _refused(shop, read, "/v1/shop/daily/c1?descending=perhaps", 400)
    await _refused(shop, read, "/v1/nowhere/totals/c1", 404)
    await _refused(shop, read, "/v1/shop/totals/c1?map_key=1", 501)
    shop.server.states["shop", "totals"].as_of_ms = 1_000
    await _refused(shop, read, "/v1/shop/totals/c1?timeout=0.3&min_epoch=99", 503, 504)


async def _refused(shop: Shop, operation: dict[str, Any], address: str, *statuses: int) -> None:
    async with shop.http.get(shop.url(address)) as response:
        problem = await response.json(content_type=None)
        assert response.status in statuses, problem
        described = _resolved(operation["responses"][str(response.status)])
        (kind, content), *_ = described["content"].items()
        assert kind == response.content_type
    _check(content["schema"], problem)
    assert problem["reason"] in re.split(r"[:,] ", described["description"])


class _Addresses(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "action", "srcset", "data")]
        assert not [name for name, _ in attrs if name.startswith("on") or name == "style"], "the policy forbids it"


async def test_the_page_to_try_it_asks_nobody_else(shop: Shop) -> None:
    async with shop.http.get(shop.url("/openapi")) as response:
        page, policy = await response.text(), response.headers["Content-Security-Policy"]
        assert response.content_type == "text/html"
    addresses = _Addresses()
    addresses.feed(page)
    assert addresses.found == ["openapi.json"]
    assert "//" not in re.sub(r"^ *//.*$", "", page, flags=re.MULTILINE).replace("/// ", "")
    assert "@import" not in page
    assert "url(" not in page
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


async def test_pages_of_the_listed_origins_may_read_and_no_others(shop: Shop) -> None:
    async def asked(path: str, origin: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str]]:
        given = {"Origin": origin, **{f"Access-Control-Request-{name}": value for name, value in headers.items()}}
        async with shop.http.request(method, shop.url(path), headers=given) as response:
            names = {name: value for name, value in response.headers.items() if name.startswith("Access-Control-")}
            assert response.headers["Vary"] == "Origin"
            assert "Cache-Control" in response.headers or response.status == 204
            return response.status, names

    allowed = {
        "Access-Control-Allow-Origin": PAGE_ORIGIN,
        "Access-Control-Expose-Headers": "ETag, Retry-After, WWW-Authenticate",
    }
    batch = "/v1/shop/totals:batchGet"
    assert await asked("/v1/shop/totals/c1", PAGE_ORIGIN) == (200, allowed)
    # A page may read a refusal, too; and a path that there isn't is one.
    assert await asked("/v1/shop/nothing/c1", PAGE_ORIGIN) == (404, allowed)
    assert await asked("/elsewhere", PAGE_ORIGIN, "OPTIONS", Method="GET") == (404, allowed)
    for path, method in (("/v1/shop/totals/c1", "GET"), (batch, "POST")):
        status, said = await asked(path, PAGE_ORIGIN, "OPTIONS", Method=method, Headers="authorization,content-type")
        methods = "GET, HEAD" if method == "GET" else "POST"
        assert (status, said) == (
            204,
            {
                **allowed,
                "Access-Control-Allow-Methods": methods,
                "Access-Control-Allow-Headers": "Authorization, Content-Type, If-None-Match, Last-Event-ID",
                "Access-Control-Max-Age": "600",
            },
        )
    assert await asked(batch, PAGE_ORIGIN, "OPTIONS", Method="DELETE") == (405, allowed)
    assert await asked(batch, PAGE_ORIGIN, "OPTIONS") == (405, allowed)  # asks for nothing
    for origin in ("https://app.example.com.evil.example", "http://app.example.com", "https://APP.example.com", "null"):
        assert await asked("/v1/shop/totals/c1", origin) == (200, {})
        assert await asked(batch, origin, "OPTIONS", Method="POST") == (405, {})


async def test_where_no_origin_is_listed_answers_have_no_header_of_it() -> None:
    async with fake_servers("server-0") as (server,), proxy_of(server.address, http="127.0.0.1:0") as proxy:
        headers = {"Origin": PAGE_ORIGIN, "Access-Control-Request-Method": "GET"}
        async with aiohttp.ClientSession(headers=headers) as http:
            for method, status in (("GET", 200), ("OPTIONS", 405)):
                async with http.request(method, f"http://{proxy.http_address}/healthz") as response:
                    assert response.status == status
                    assert not [name for name in response.headers if name.startswith(("Access-Control-", "Vary"))]


def test_origins_are_spelled_as_browsers_do() -> None:
    given = ["https://App.example.com:443", "http://localhost:3000", "http://[::1]:80", "https://x", "https://x:8443"]
    assert checked_origins(given) == {
        "https://app.example.com",
        "http://localhost:3000",
        "http://[::1]",
        "https://x",
        "https://x:8443",
    }


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "null",
        "app.example.com",
        "localhost:3000",
        "https://",
        "https://x/",
        "https://x/path",
        "https://x?q",
        "https://x#",
        "https://u@x",
        "https://*.example.com",
        "https://x:port",
        "https://[::1",
        "https://bücher.example",
        "https://x y",
    ],
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(InvalidConfiguration, match="each must be one origin, as https"):
        checked_origins([origin])


async def test_origins_and_names_without_an_http_port_are_refused() -> None:
    for given in ({"http_origins": (PAGE_ORIGIN,)}, {"http_hosts": ("reads.example.com",)}):
        with pytest.raises(InvalidConfiguration, match="there are no reads over HTTP"):
            async with proxy_of("127.0.0.1:1", **given):  # type: ignore[arg-type]
                pass
