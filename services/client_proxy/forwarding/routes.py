"""Which servers a key group may be asked of, in which order, by the reader's policy for stale reads."""

from __future__ import annotations

import random
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from keyhole.client.wire.coalescing import Lane
from keyhole.encoding.storage_key import are_storage_keys, group_of
from keyhole.errors import KeyTooLong, MalformedRequest, NoServer, StaleDescriptor
from keyhole.model.read import Stale
from keyhole.protocol.routing import RouteTable
from keyhole.protocol.server_view import StateName
from services.client_proxy.directory import Directory


class FirstCopies(NamedTuple):
    """Where the keys of a frame go first.

    Attributes:
        sole: The server of all of them; empty: there are several, or none.
        by_server: The places of each server's keys, if there is no sole one.
        unrouted: The places of keys that no server answers for.
        too_long: The places of keys that no server takes.
    """

    sole: str
    by_server: Mapping[str, Sequence[int]] = {}
    unrouted: Sequence[int] = ()
    too_long: Sequence[int] = ()


class LaneRoutes:
    """The copies for keys of one lane, as the directory knows them at each call."""

    def __init__(self, directory: Directory, lane: Lane) -> None:
        self._directory = directory
        self._name = (lane.application, lane.state)
        self._topic_id = lane.topic_id
        self._stale = lane.bounds.stale

    def table(self, keys: Sequence[bytes]) -> RouteTable:
        """The table of the keys' state. A bad key must not spoil the frames it would travel in.

        Raises:
            NoServer, UnknownApplication, UnknownState: As Directory.table.
            StaleDescriptor: The keys are of a state that was made anew since.
            MalformedRequest: They are no storage keys of the state.
        """
        table = self._directory.table(self._name)
        state = "/".join(self._name)
        if table.descriptor.topic_id != self._topic_id:
            raise StaleDescriptor(f"state {state} was made anew; describe it again", topic_id=table.descriptor.topic_id)
        # One call in C: there are hundreds of keys.
        if not are_storage_keys(keys, table.descriptor.key_groups):
            raise MalformedRequest(f"not storage keys of state {state}: 2 bytes of key group, then the encoded key")
        return table

    def first(self, table: RouteTable, keys: Sequence[bytes]) -> FirstCopies:
        """Which server each key goes to first, by the stale policy; of equal copies one by chance, for the frame."""
        if self._stale is Stale.WHEN_NEEDED:
            routes = table.nearest
        else:
            routes = table.owners if self._stale is Stale.NEVER else random.choice(table.spread)  # noqa: S311 - no secret
        too_long = _too_long(table, keys)
        if routes.sole and not too_long:
            return FirstCopies(routes.sole)
        by_server = routes.split(keys)
        if too_long:
            by_server = {of: sorted(set(places).difference(too_long)) for of, places in by_server.items()}
        unrouted = by_server.pop("", [])
        return FirstCopies("", {of: places for of, places in by_server.items() if places}, unrouted, too_long)

    def next(self, key: bytes, asked: Container[str]) -> str:
        """The first copy that was not asked yet; empty: there is none, or the state was made anew."""
        table = self._directory.tables.get(self._name)
        if table is None or table.descriptor.topic_id != self._topic_id:
            return ""  # `table` says so.
        copies = copies_of(table, group_of(key), self._stale)
        return next((address for address in copies if address not in asked), "")


def copies_of(table: RouteTable, group: int, stale: Stale) -> Sequence[str]:
    """All who may be asked for a key group's keys, the best first; none: nobody answers for it."""
    if stale is Stale.NEVER:
        owner = table.owners.addresses[group]
        return (owner,) if owner else ()
    return table.copies[group]


def scan_copies(table: RouteTable, group: int, stale: Stale) -> Sequence[str]:
    """The same, where one key is asked for and the order holds from the first copy on."""
    copies = copies_of(table, group, stale)
    if stale is not Stale.ALWAYS:
        return copies
    first = random.choice(table.spread).addresses[group]  # noqa: S311 - no secret
    return (first, *(address for address in copies if address != first)) if first else copies


def no_server(name: StateName, table: RouteTable) -> NoServer:
    """Nobody answers for a key group of the state."""
    return NoServer(f"no server answers for a key group of {'/'.join(name)}: {table.missing}")


def key_too_long(name: StateName, table: RouteTable) -> KeyTooLong:
    """The error for keys that the servers of the state don't take."""
    most = table.max_key_bytes
    return KeyTooLong(
        f"a key of state {'/'.join(name)} is longer than its servers take: {most} bytes, encoded", max_key_bytes=most
    )


def _too_long(table: RouteTable, keys: Sequence[bytes]) -> Sequence[int]:
    """The places of keys that are longer than the servers take: others of the frame must not fail with them."""
    most = table.max_key_bytes
    if not most or max(map(len, keys)) <= most:
        return ()
    return [place for place, key in enumerate(keys) if len(key) > most]
