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
# A name that has more is one of many proxies: of those, some are not looked at alone.
_MOST = 16
# Who resolves names for gRPC has both of this name. Others are not asked: a token without TLS stays on this machine.
_LOOPBACK = ("127.0.0.1", "::1")
# What else gRPC can be given than the name of a host: none of these is one.
_SCHEMES = frozenset({"unix", "unix-abstract", "vsock", "xds", "google-c2p", "google-c2p-experimental"})


async def misplaced(target: str, shown: Renewing | None) -> KeyholeError | None:
    """Why an address of the target is none to wait for; None: none is so, or one answers.

    None also where there is only one address, or more than are looked at. Within some seconds.
    """
    name, addresses = await addresses_of(target)
    if not 2 <= len(addresses) <= _MOST:
        return None
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(_said(target, name, address, shown)) for address in addresses]
    said = [task.result() for task in asked]
    if None in said:
        return None
    return next((error for error in said if error is not None and not status.may_pass(error)), None)


async def addresses_of(target: str) -> tuple[str, list[str]]:
    """The addresses of a target: by which name all of them are asked, and each as gRPC takes it.

    None where only gRPC can resolve the target, or nobody can now. Within some seconds.
    """
    scheme, mark, rest = target.partition(":")
    if mark and scheme in ("ipv4", "ipv6"):
        each = list(dict.fromkeys(rest.split(",")))
        return each[0], [f"{scheme}:{address}" for address in each]
    name = rest.removeprefix("//").removeprefix("/") if scheme == "dns" else target
    try:
        host, port = parted(name, "the target")
    except InvalidConfiguration:
        return name, []
    if scheme in _SCHEMES or "/" in host:  # also behind "dns:": which server is to resolve it, gRPC alone knows
        return name, []
    found: list[str] = list(_LOOPBACK) if host == "localhost" else []
    if not found:
        with contextlib.suppress(OSError):  # a TimeoutError is one
            async with asyncio.timeout(_SECONDS):
                known = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found = [str(address[0]) for *_, address in known]
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
