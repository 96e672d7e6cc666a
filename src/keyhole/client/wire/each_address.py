"""What is behind each address of a target's name, where none of them could be connected to.

gRPC tries them all, and tells why the last one failed alone. Where another one is that of a port for HTTP, that is what
a person has to know: nobody will ever answer there.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

import grpc

from keyhole.addresses import joined, parted
from keyhole.errors import InvalidConfiguration, KeyholeError
from keyhole.rpc import channels, status
from keyhole.rpc.rotation import Renewing
from keyhole.v1 import query_pb2, query_pb2_grpc

_SECONDS = 2.0
# A name that has more is one of many proxies.
_MOST = 16
# Who resolves names for gRPC has both of this name, wherever else they are from.
_LOOPBACK = ("127.0.0.1", "::1")


async def misplaced(target: str, shown: Renewing | None) -> KeyholeError | None:
    """Why an address of the target is none to wait for; None: there is only one address, none is so, or one answers.

    Within some seconds.
    """
    name, addresses = await _addresses(target)
    if len(addresses) < 2:
        return None
    said = await asyncio.gather(*(_said(target, name, address, shown) for address in addresses[:_MOST]))
    if None in said:
        return None
    return next((error for error in said if error is not None and not status.may_pass(error)), None)


async def _addresses(target: str) -> tuple[str, list[str]]:
    """As what all of them are known, and each as gRPC takes it; none where only gRPC can resolve the target."""
    scheme, mark, rest = target.partition(":")
    if mark and scheme in ("ipv4", "ipv6"):
        each = list(dict.fromkeys(rest.split(",")))
        return each[0], [f"{scheme}:{address}" for address in each]
    name = target.removeprefix("dns:").lstrip("/")
    try:
        host, port = parted(name, "the target")
    except InvalidConfiguration:
        return name, []
    found: list[str] = list(_LOOPBACK) if host == "localhost" else []
    with contextlib.suppress(OSError):
        known = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found += [str(address[0]) for *_, address in known]
    families = {address: "ipv6" if ":" in address else "ipv4" for address in found}
    return name, [f"{family}:{joined(address, port)}" for address, family in families.items()]


async def _said(target: str, name: str, address: str, shown: Renewing | None) -> KeyholeError | None:
    """Why the address can't be asked; None: a Keyhole process answers there."""
    channel = channels.aio_channel_to(address, name, shown)
    try:
        await query_pb2_grpc.QueryStub(channel).ListStates(query_pb2.ListStatesRequest(), timeout=_SECONDS)
    except grpc.RpcError as error:
        return None if status.was_sent(error) else status.from_rpc_error(error, f"{target} at {address}")
    finally:
        await channel.close()
    return None
