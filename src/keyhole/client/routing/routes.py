"""Which servers a key group may be asked of, in which order, by the reader's policy for stale reads."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from keyhole.backoff import JITTER
from keyhole.client.routing.known_servers import KnownServers
from keyhole.client.wire.coalescing import Lane
from keyhole.encoding.storage_key import are_storage_keys, group_of
from keyhole.errors import KeyholeError, KeyTooLong, MalformedRequest, NoServer, StaleDescriptor
from keyhole.model.read import Stale
from keyhole.protocol.routing import RouteTable
from keyhole.protocol.server_view import StateName


class Trouble(NamedTuple):
    """Why keys can't be sent to any server. `final`: neither in a moment."""

    error: KeyholeError
    final: bool


class FirstCopies(NamedTuple):
    """Where the keys of a frame go first.

    Attributes:
        by_server: The places of each server's keys; None: all.
        nowhere: The places of keys that no server answers for, or takes.
    """

    by_server: Mapping[str, Sequence[int] | None] = {}
    nowhere: Sequence[tuple[Trouble, Sequence[int]]] = ()


class LaneRoutes:
    """Finds the copies for keys of one lane, as they are known at each call."""

    def __init__(self, servers: KnownServers, lane: Lane) -> None:
        self._servers = servers
        self._name = (lane.application, lane.state)
        self._topic_id = lane.topic_id
        self._stale = lane.bounds.stale

    def first(self, keys: Sequence[bytes]) -> FirstCopies:
        """Which server each key goes to first, by the stale policy; of equal copies one by chance, for the frame."""
        if trouble := self.trouble(keys):
            return FirstCopies(nowhere=[(trouble, range(len(keys)))])
        table = self._servers.tables[self._name]
        if self._stale is Stale.WHEN_NEEDED:
            routes = table.first
        else:
            routes = table.owners if self._stale is Stale.NEVER else JITTER.choice(table.spread)
        too_long = table.too_long(keys)
        if routes.sole and not too_long:
            return FirstCopies({routes.sole: None})
        by_server = routes.split(keys)
        nowhere: list[tuple[Trouble, Sequence[int]]] = []
        if too_long:
            by_server = {of: sorted(set(places).difference(too_long)) for of, places in by_server.items()}
            nowhere.append((Trouble(_key_too_long(self._name, table), final=True), too_long))
        if unrouted := by_server.pop("", ()):
            nowhere.append((Trouble(self.no_server(), final=False), unrouted))
        return FirstCopies({of: places for of, places in by_server.items() if places}, nowhere)

    def trouble(self, keys: Sequence[bytes]) -> Trouble | None:
        """Why none of these can be sent anywhere; None: the routes of their state are known.

        Also a bad key is one: it must not spoil the frames that it would travel in.
        """
        try:
            table = self._servers.table(self._name)
        except KeyholeError as error:
            # Before every server was tried once, nobody can say that a state does not exist.
            settled = self._servers.settled.is_set()
            return Trouble(error if settled else NoServer(error.message), final=settled)
        state = "/".join(self._name)
        if table.descriptor.topic_id != self._topic_id:
            made_anew = f"state {state} was made anew; describe it again"
            return Trouble(StaleDescriptor(made_anew, topic_id=table.descriptor.topic_id), final=True)
        # One call in C: there are hundreds of keys.
        if not are_storage_keys(keys, table.descriptor.key_groups):
            bad = f"not storage keys of state {state}: 2 bytes of key group, then the encoded key"
            return Trouble(MalformedRequest(bad), final=True)
        return None

    def no_server(self) -> NoServer:
        """Makes the error for keys that nobody answers for, of the state, whose routes are known."""
        return no_server(self._name, self._servers.tables[self._name])

    def next(self, key: bytes, asked: Container[str]) -> str:
        """Returns the first copy that was not asked yet; empty: there is none, or the state was made anew."""
        table = self._servers.tables.get(self._name)
        if table is None or table.descriptor.topic_id != self._topic_id:
            return ""  # `trouble` says so.
        copies = copies_of(table, group_of(key), self._stale)
        return next((address for address in copies if address not in asked), "")


def copies_of(table: RouteTable, group: int, stale: Stale) -> Sequence[str]:
    """Returns all who may be asked for a key group's keys, the best first; none: nobody answers for it."""
    if stale is Stale.NEVER:
        owner = table.owners.addresses[group]
        return (owner,) if owner else ()
    return table.copies[group]


def scan_copies(table: RouteTable, group: int, stale: Stale) -> Sequence[str]:
    """Returns the same for a scan: one key is asked for, and the order holds from the first copy on."""
    copies = copies_of(table, group, stale)
    if stale is not Stale.ALWAYS:
        return copies
    first = JITTER.choice(table.spread).addresses[group]
    return (first, *(address for address in copies if address != first)) if first else copies


def no_server(name: StateName, table: RouteTable) -> NoServer:
    """Makes the error for keys of a key group that nobody answers for."""
    return NoServer(f"no server answers for a key group of {'/'.join(name)}: {table.missing}")


def _key_too_long(name: StateName, table: RouteTable) -> KeyTooLong:
    """Makes the error for keys that are longer than the servers that hold the state take."""
    most = table.max_key_bytes
    return KeyTooLong(
        f"a key of state {'/'.join(name)} is longer than its servers take: {most} bytes, encoded", max_key_bytes=most
    )
