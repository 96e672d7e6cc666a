"""Which servers a command shows that looks again and again: those that are there, and those that were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar


class _NamedServer(Protocol):
    @property
    def server(self) -> str: ...

    @property
    def address(self) -> str: ...


_Seen = TypeVar("_Seen", bound=_NamedServer)


def seen_servers(before: Mapping[str, _Seen], there: Iterable[_Seen]) -> dict[str, _Seen]:
    """By address, those that are there, by name; then those of before that are gone.

    A server that has come again at another address, as a pod does, is not gone: only where it is now is kept.
    """
    present = {server.address: server for server in sorted(there, key=_by_name)}
    again = {server.server for server in present.values() if server.server}
    gone = [server for server in before.values() if server.address not in present and server.server not in again]
    return present | {server.address: server for server in sorted(gone, key=_by_name)}


def _by_name(server: _NamedServer) -> tuple[str, str]:
    return server.server, server.address
