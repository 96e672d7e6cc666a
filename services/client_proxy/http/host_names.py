"""Which names of the proxy its HTTP port answers to: what keeps web pages out that call it by a name of their own.

A page of evil.example is of the origin that its name is. Once that name leads to the proxy's address (DNS rebinding),
the page may read all that the port answers, from within the network of whoever opened it. But its requests still name
evil.example as their host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiohttp import web

from keyhole.errors import InvalidConfiguration

VARIABLE = "KEYHOLE_CLIENT_PROXY_HTTP_HOSTS"

# Of ASCII letters alone, as browsers send names.
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:]+)(:[0-9]*)?")
# Of these a prober may not know a name, and they say nothing of a state.
_OPEN = ("/healthz", "/readyz")

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def checked_hosts(hosts: Iterable[str]) -> frozenset[str]:
    """The names, in small letters.

    Raises:
        InvalidConfiguration: One that is none, or that means all of them (`*`).
    """
    names = {host: host.lower().removesuffix(".") for host in hosts}
    for host, name in names.items():
        if not _NAME.fullmatch(name):
            raise InvalidConfiguration(
                f"{VARIABLE} has {host!r}; each must be one name, as reads.example.com: no scheme, no port, no *, in "
                "ASCII (xn--...). Addresses (10.0.0.7) and localhost need not be listed",
                variable=VARIABLE,
            )
    return frozenset(names.values())


def answering_to(names: frozenset[str]) -> Any:
    """A middleware that refuses requests which call the proxy by another name, with status 421.

    It is always answered to an address, to `localhost` and the names below it, and to who says no host, which no
    browser does.

    Args:
        names: As `checked_hosts` returns them.
    """

    @web.middleware
    async def hosts(request: web.Request, handler: _Handler) -> web.StreamResponse:
        given = request.headers.getall("Host", [])
        if request.path not in _OPEN and not all(_is_ours(host, names) for host in given):
            raise web.HTTPMisdirectedRequest
        return await handler(request)

    return hosts


def _is_ours(host: str, names: frozenset[str]) -> bool:
    parts = _HOST.fullmatch(host.lower())
    if parts is None:
        return False
    name = parts[1].removesuffix(".")
    return name in names or name == "localhost" or name.endswith(".localhost") or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
