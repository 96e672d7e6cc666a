"""Addresses to listen on, host:port, and what is said where that can't be done."""

from __future__ import annotations

from keyhole.errors import InvalidConfiguration, PortTaken


def parted(address: str, what: str) -> tuple[str, int]:
    """Host, without the brackets of an IPv6 address, and port; 0: any free one.

    Args:
        what: Whose address it is, for the message.

    Raises:
        InvalidConfiguration: It is not host:port.
    """
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) < 1 << 16):
        raise InvalidConfiguration(f"{what} is {address!r}; it must be host:port")
    return host.strip("[]"), int(port)


def joined(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def port_taken(what: str, address: str) -> PortTaken:
    """What to raise where `what` can't listen there."""
    return PortTaken(
        f"{what} can't listen on {address}: another process has the port, or the host is not this machine's; stop that "
        "process or choose another port",
        address=address,
    )
