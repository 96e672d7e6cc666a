"""Reads what a state server holds of a state, into a store of this process's own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from keyhole.model.epoch import START, Position
from keyhole.model.read import Role
from keyhole.rpc.one_server import state_server
from keyhole.security.credentials import PLAIN, Credentials
from keyhole.stores.base import Advance, Batch, Store
from keyhole.stores.index_entries import index_group
from keyhole.v1 import state_pb2
from keyhole.v1 import state_server_pb2 as pb


@dataclass(frozen=True)
class Server:
    """A state server. `address`: host:port."""

    server: str
    address: str


@dataclass(frozen=True)
class CheckedCopy:
    """What a server holds of one key group, as of one position of its changelog."""

    server: Server
    role: Role
    key_group: int
    offset: int
    epoch: int


class Dump(Protocol):
    """Asks a server for all that it holds of some key groups (none named: of all); key group by key group."""

    def __call__(self, server: Server, key_groups: Collection[int]) -> Iterable[pb.DumpChunk]: ...


class RemoteDump:
    """Dump over gRPC.

    Args:
        timeout_seconds: How long one server may take for all of it.
    """

    def __init__(self, application: str, state: str, timeout_seconds: float, credentials: Credentials = PLAIN) -> None:
        self._credentials = credentials
        self._application = application
        self._state = state
        self._timeout_seconds = timeout_seconds

    def __call__(self, server: Server, key_groups: Collection[int]) -> Iterator[pb.DumpChunk]:
        """Raises KeyholeError: the server's, or ServerLost."""
        request = pb.DumpRequest(application=self._application, state=self._state, key_groups=sorted(key_groups))
        with state_server(server.address, self._credentials) as asked:
            yield from asked.Dump(request, timeout=self._timeout_seconds)


def fetch(server: Server, chunks: Iterable[pb.DumpChunk], store: Store) -> Iterator[CheckedCopy]:
    """Puts the rows, and what there is of indexes, into the store; yields each key group when it is whole."""
    begun: dict[int, Position] = {}
    for chunk in chunks:
        position = Position(chunk.offset, chunk.epoch, generation=0, checksum=0)
        puts, groups = sorted(zip(chunk.storage_keys, chunk.rows, strict=True)), [chunk.key_group]
        if chunk.index_keys:
            puts += sorted(zip(chunk.index_keys, chunk.index_values, strict=True))
            groups.append(index_group(chunk.key_group))
        advances = {group: Advance(begun.get(group, START), position) for group in groups}
        store.apply(Batch(puts=puts, advances=advances))
        begun.update(dict.fromkeys(groups, position))
        if chunk.last:
            role = Role.OWNER if chunk.role == state_pb2.ROLE_OWNER else Role.STANDBY
            yield CheckedCopy(server, role, chunk.key_group, chunk.offset, chunk.epoch)
