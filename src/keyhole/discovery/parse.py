"""How a setting says where the servers are. Pure.

    a:7410,b:7410                                        these
    dns:state-servers:7410                               every address of the name
    kubernetes:7410?namespace=data&selector=app=x,b!=y   every pod that the selector takes; both may be left out

They may be mixed. A selector may hold commas: what has no colon in it belongs to the selector before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias
from urllib.parse import parse_qsl

from keyhole.addresses import is_host_port, port_of
from keyhole.errors import InvalidConfiguration

DEFAULT_SELECTOR = "keyhole.dev/state-server=true"

_DNS = "dns:"
_KUBERNETES = "kubernetes:"
_PARAMETERS = ("namespace", "selector")
_SPELLINGS = (
    "servers are given as host:port, as dns:name:port (all addresses of the name), or as "
    "kubernetes:port?namespace=...&selector=... (pods by their labels)"
)


class Address(NamedTuple):
    """The address of one server, as host:port."""

    text: str


class DnsName(NamedTuple):
    """A server at each address of the name."""

    name: str
    port: int


class Pods(NamedTuple):
    """A server in each pod that the label selector takes. `namespace`: None: the one that this process runs in."""

    port: int
    namespace: str | None = None
    selector: str = DEFAULT_SELECTOR


Spelled: TypeAlias = Address | DnsName | Pods


def read(servers: str) -> tuple[Spelled, ...]:
    """What the setting says, in its order.

    Raises:
        InvalidConfiguration: It says nothing, or an entry is none of the spellings; the message names the entry.
    """
    entries = tuple(_entry(text) for text in _entries(servers.split(",")))
    if not entries:
        raise InvalidConfiguration(f"the list of servers is empty; {_SPELLINGS}")
    return entries


def checked_address(text: str) -> str:
    """The text, which is host:port.

    Raises:
        InvalidConfiguration: It is not.
    """
    if not is_host_port(text):
        raise InvalidConfiguration(f"state server {text!r} is not host:port; {_SPELLINGS}", server=text)
    return text


def _entries(parts: Iterable[str]) -> Iterator[str]:
    """The entries of a list that was cut at every comma, also at those of a selector."""
    begun = ""
    for part in (part.strip() for part in parts):
        if begun and part and ":" not in part:
            begun += f",{part}"
            continue
        if begun:
            yield begun
        begun = part if part.startswith(_KUBERNETES) else ""
        if part and not begun:
            yield part
    if begun:
        yield begun


def _entry(text: str) -> Spelled:
    if text.startswith(_DNS):
        name, _, after = text.removeprefix(_DNS).rpartition(":")
        port = port_of(after)
        if not name or ":" in name or port is None:
            raise _refused(text, "it is not dns:name:port")
        return DnsName(name, port)
    if text.startswith(_KUBERNETES):
        return _pods(text)
    return Address(checked_address(text))


def _pods(text: str) -> Pods:
    before, _, query = text.removeprefix(_KUBERNETES).partition("?")
    port = port_of(before)
    if port is None:
        raise _refused(text, "after kubernetes: comes the port of the servers in the pods")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError as error:
        raise _refused(text, "after the ? come namespace=... and selector=..., with & between them") from error
    given = dict(pairs)
    if unknown := sorted(given.keys() - set(_PARAMETERS)):
        raise _refused(text, f"it has {unknown[0]!r}; what may be given is {' and '.join(_PARAMETERS)}")
    if len(given) < len(pairs):
        raise _refused(text, "it says something twice")
    if empty := [name for name, value in given.items() if not value.strip()]:
        raise _refused(text, f"its {empty[0]} is empty; leave it out for the default")
    return Pods(port, given.get("namespace"), given.get("selector", DEFAULT_SELECTOR))


def _refused(text: str, why: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"state servers {text!r}: {why}; {_SPELLINGS}", server=text)
