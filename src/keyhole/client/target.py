"""Whom a client connects to, as people write it. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import TypeAlias

from keyhole.addresses import joined, port_of
from keyhole.config import DEFAULT_HTTP_PORT, DEFAULT_PROXY_PORT
from keyhole.errors import InvalidConfiguration
from keyhole.model.given import LEFT_OUT

# What gRPC takes as it is: dns:///proxies:7400 for several addresses of one name.
_OF_GRPC = ("dns:", "unix:", "unix-abstract:", "vsock:", "ipv4:", "ipv6:", "xds:")
# Of these a comma is part of one target.
_OF_SEVERAL_ADDRESSES = ("ipv4:", "ipv6:")
_HOST = re.compile(r"[A-Za-z0-9_.%-]+|\[[0-9A-Fa-f:.%]+\]")


Targets: TypeAlias = str | Sequence[str]
"""One target, or several: separated by commas, or a list."""


def targets_of(given: object, *more: object) -> tuple[str, ...]:
    """One target or several, each once, as `target_of` takes it.

    Args:
        more: What a client was given behind its target: nothing, or it is refused.

    Raises:
        InvalidConfiguration: One of them is none, or there is none.
    """
    if given is LEFT_OUT:
        raise _wrong("is left out")
    if more:
        in_parts = isinstance(given, str) and _HOST.fullmatch(given) and port_of(str(more[0])) is not None
        raise _wrong(
            f"is given as {1 + len(more)} arguments, where all but one have a name (timeout=, credentials=, routing=)",
            f"{given}:{more[0]}" if in_parts else "",
        )
    if isinstance(given, str):
        several = "," in given and not given.startswith(_OF_SEVERAL_ADDRESSES)
        written: Sequence[object] = [part.strip() for part in given.split(",")] if several else [given]
    elif isinstance(given, (list, tuple)):
        written = given
    else:
        written = [given]
    if not written:
        raise _wrong("is an empty list")
    return tuple(dict.fromkeys(target_of(target) for target in written))


def target_of(given: object) -> str:
    """host:port, with the proxy's default port where none is given; what gRPC resolves itself as it is.

    Raises:
        InvalidConfiguration: It is neither; the message says what is wrong with it.
    """
    if not isinstance(given, str):
        raise _wrong(f"is a {type(given).__name__}")
    if not given or given != given.strip():
        raise _wrong("is empty" if not given.strip() else f"is {given!r}, with spaces around it")
    if given.startswith(_OF_GRPC):
        return given
    scheme, mark, rest = given.partition("://")
    if mark:
        raise _wrong(
            f"is {given!r}, a URL: leave out {scheme}:// (TLS is turned on by credentials=), and name the gRPC port, "
            f"{DEFAULT_PROXY_PORT} where nothing else is set, not the one for HTTP",
            rest.replace(f":{DEFAULT_HTTP_PORT}", f":{DEFAULT_PROXY_PORT}"),
        )
    if _is_ipv6(given):
        return joined(given, DEFAULT_PROXY_PORT)
    host, colon, port = given.rpartition(":") if not given.endswith("]") else (given, "", "")
    if not colon:
        host, port = given, str(DEFAULT_PROXY_PORT)
    if not _HOST.fullmatch(host):
        raise _wrong(f"is {given!r}, which is no host and port")
    if port_of(port) is None:
        raise _wrong(f"is {given!r}, whose port is no number from 1 to 65535")
    return f"{host}:{port}"


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def _wrong(what: str, instead: str = "") -> InvalidConfiguration:
    example = instead.partition("/")[0] or f"proxy:{DEFAULT_PROXY_PORT}"
    return InvalidConfiguration(f"the target {what}; give host:port of a client proxy, like {example}")
