"""What is sent to ports that speak HTTP/1.1: the proxy's reads, and the pages of /metrics. See attacks."""

from __future__ import annotations

import json
import random
from pathlib import Path
from urllib.parse import quote

from keyhole.security.credentials import Credentials
from tests.fuzz.attacks import PREFACE, Attack, send

_METHODS = ("GET", "GET", "GET", "POST", "POST", "HEAD", "PUT", "OPTIONS", "TRACE", "CONNECT", "get", "G\x00T", "")
_NAMES = ("app", "counts", "", "..", "*", "\x00", "a/b", "%", "é", "x" * 300)
_PARAMETERS = ("stale", "max_staleness", "min_epoch", "timeout", "integers", "from", "to", "limit", "map_key", "x", "")
_VALUES = ("", "0", "1", "-1", "true", "nan", "inf", "1e999", "9" * 30, "a", "\x00", "[]", "text", "99999999999999999")
_HEADERS = (
    "Content-Length: -1",
    "Content-Length: 99999999999",
    "Content-Length: 5\r\nContent-Length: 6",
    "Content-Length: 5\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked, chunked",
    "Content-Encoding: gzip",
    "Content-Encoding: br",
    "Content-Type: application/json; charset=utf-99",
    "Expect: 100-continue",
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x",
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c",
    "Authorization: Bearer ",
    "Authorization: Basic OTk6OTk=",
    "Authorization: Bearer \xff\xfe",
    "Cookie: a=b; =; ;;",
    "Accept-Encoding: gzip, deflate, br;q=x",
    "Range: bytes=0-",
    "If-Modified-Since: yesterday",
    ": nothing",
    "folded: a\r\n b",
    "no colon",
    "X-Nul: \x00",
)


async def made_up_requests(chance: random.Random, target: str, credentials: Credentials) -> None:
    """Any method, path, parameters and headers, several on one connection."""
    requests = []
    for _ in range(chance.choice((1, 1, 3, 30))):
        lines = [f"{chance.choice(_METHODS)} {_path(chance)} {chance.choice(('HTTP/1.1', 'HTTP/1.0', 'HTTP/9', ''))}"]
        lines += ["Host: localhost", *_authorization(chance, credentials)]
        lines += chance.sample(_HEADERS, chance.choice((0, 0, 1, 3)))
        body = _body(chance)
        if chance.random() < 0.8:
            lines.append(f"Content-Length: {len(body)}")
        requests.append("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
    await send(target, [b"".join(requests)])


async def mutated_requests(chance: random.Random, target: str, credentials: Credentials) -> None:
    """Good requests, bit by bit not quite so."""
    token = _authorization(chance, credentials)
    body = json.dumps({"keys": ["a", "b"]}).encode()
    good = [
        ("GET /v1/app/counts/a?stale=true&timeout=1 HTTP/1.1", b""),
        ("GET /v1/app/counts/a?map_key=1&limit=3 HTTP/1.1", b""),
        ("GET /v1 HTTP/1.1", b""),
        ("GET /metrics HTTP/1.1", b""),
        ("POST /v1/app/counts:batchGet HTTP/1.1", body),
    ]
    whole = b""
    for line, content in chance.choices(good, k=chance.randint(1, 5)):
        head = [line, "Host: localhost", *token, f"Content-Length: {len(content)}", "", ""]
        whole += "\r\n".join(head).encode() + content
    changed = bytearray(whole)
    for _ in range(chance.randint(1, 12)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    await send(target, [bytes(changed)])


async def chunks(chance: random.Random, target: str, credentials: Credentials) -> None:
    """Bodies in parts: of wrong lengths, without an end, of many small ones, and of more than is taken."""
    head = ["POST /v1/app/counts:batchGet HTTP/1.1", "Host: localhost", *_authorization(chance, credentials)]
    parts = ["\r\n".join([*head, "Transfer-Encoding: chunked", "", ""]).encode()]
    for _ in range(chance.choice((1, 20, 500))):
        content = chance.randbytes(chance.choice((0, 1, 10, 20_000)))
        length = chance.choice(
            (f"{len(content):x}", f"{len(content):x}", "-1", "ffffffffffffffffff", "g", "5;x=" + "y" * 99)
        )
        parts.append(f"{length}\r\n".encode() + content + chance.choice((b"\r\n", b"\r\n", b"\n", b"")))
    await send(target, [*parts, chance.choice((b"0\r\n\r\n", b"0\r\nTrailer: x\r\n\r\n", b""))])


async def too_much(chance: random.Random, target: str, credentials: Credentials) -> None:
    """Lines, headers and bodies beyond the limits."""
    line, count = chance.choice(((100_000, 1), (10, 5_000), (8_000, 100)))
    head = [f"GET /v1/app/counts/{'k' * line if chance.random() < 0.5 else 'a'} HTTP/1.1", "Host: localhost"]
    head += [f"x-{number}: {'v' * line}" for number in range(count)]
    await send(target, ["\r\n".join([*head, f"Content-Length: {1 << 40}", "", ""]).encode(), bytes(1 << 20)])


async def no_requests(chance: random.Random, target: str, credentials: Credentials) -> None:
    """Another protocol, random bytes, and beginnings."""
    begun = b"GET /v1/app/counts/a HTTP/1.1\r\nHost: localhost\r\n\r\n"
    client_hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    beginning = begun[: chance.randrange(len(begun))]
    data = (PREFACE + bytes(9), client_hello + chance.randbytes(500), chance.randbytes(20_000), beginning)
    await send(target, [chance.choice(data)])


def _path(chance: random.Random) -> str:
    known = ["/v1", "/metrics", "/healthz", "/readyz", "*", "http://fuzz/v1", "//", "/v1/app/counts:scan"]
    names = [chance.choice(_NAMES) for _ in range(chance.randint(1, 5))]
    path = chance.choice([*known, "/v1/" + "/".join(names), "/v1/app/counts/" + names[0], "/v1/app/counts:batchGet"])
    if chance.random() < 0.5:
        path = quote(path, safe="/:*")
    if chance.random() < 0.5:
        pairs = [f"{chance.choice(_PARAMETERS)}={chance.choice(_VALUES)}" for _ in range(chance.randint(1, 4))]
        path += "?" + "&".join(quote(pair, safe="=") if chance.random() < 0.7 else pair for pair in pairs)
    return path.encode("ascii", "ignore").decode() or "/"


def _authorization(chance: random.Random, credentials: Credentials) -> list[str]:
    if not credentials.token_file:
        return []
    return [f"Authorization: Bearer {Path(credentials.token_file).read_text().strip()}"]


def _body(chance: random.Random) -> bytes:
    deep = b"[" * 50_000
    bodies = (
        b"",
        b"{",
        b"null",
        deep,
        chance.randbytes(100),
        b'{"keys": ' + deep,
        json.dumps(_json(chance, 0)).encode(),
    )
    return chance.choice(bodies)


def _json(chance: random.Random, depth: int) -> object:
    values = ("a", "", "\x00", 0, -1, 1 << 70, 1e308, None, True, {"counts": "a"})
    if depth > 3 or chance.random() < 0.3:
        return chance.choice(values)
    if chance.random() < 0.5:
        return {"keys": [_json(chance, depth + 1) for _ in range(chance.choice((0, 1, 5, 300)) if depth == 0 else 1)]}
    return [_json(chance, depth + 1) for _ in range(chance.randint(0, 4))]


HTTP_ATTACKS: tuple[Attack, ...] = (made_up_requests, mutated_requests, chunks, too_much, no_requests)
