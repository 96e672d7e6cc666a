"""host:port, parsed and spelled; and what is said where nobody can listen there. Pure. All other modules ask here."""

from __future__ import annotations

from keyhole.errors import InvalidConfiguration, PortTaken

_PORTS = 1 << 16


def port_of(text: str) -> int | None:
    """The port that the text names, from 1 to 65535. None: it is no port."""
    return int(text) if text.isascii() and text.isdecimal() and 0 < int(text) < _PORTS else None


def host_of(address: str) -> str:
    """The host of host:port, as it is spelled; empty: it is not that."""
    return address.rpartition(":")[0]


def is_host_port(text: str) -> bool:
    """Whether it is host:port, of a port that others could reach."""
    host, _, port = text.rpartition(":")
    return bool(host) and port_of(port) is not None


def parted(address: str, what: str) -> tuple[str, int]:
    """Of an address to listen on: the host, without the brackets of an IPv6 address, and the port; 0: any free one.

    Args:
        what: Whose address it is, for the message.

    Raises:
        InvalidConfiguration: It is not host:port.
    """
    host, _, text = address.rpartition(":")
    port = 0 if text and not text.strip("0") else port_of(text)
    if not host or port is None:
        raise InvalidConfiguration(f"{what} is {address!r}; it must be host:port")
    return host.strip("[]"), port


def joined(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address, whether or not it comes with them."""
    return f"[{host.strip('[]')}]:{port}" if ":" in host else f"{host}:{port}"


def port_taken(what: str, address: str) -> PortTaken:
    """What to raise where `what` can't listen there."""
    return PortTaken(
        f"{what} can't listen on {address}: another process has the port, or the host is not this machine's; stop that "
        "process or choose another port",
        address=address,
    )
