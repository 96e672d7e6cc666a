"""What a reader knows of each server: its last word, and whether their connection stands. Pure."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from keyhole.model.read import Role
from keyhole.model.state import StateDescriptor

StateName: TypeAlias = tuple[str, str]
"""Application and state."""


class Holding(msgspec.Struct, frozen=True):
    """What one server says of one state in one role: a server that owns some key groups and follows others sends two of
    them.

    Attributes:
        key_groups: Those that it answers for, or will once it is ready.
    """

    descriptor: StateDescriptor
    key_groups: frozenset[int]
    role: Role
    generation: int
    assignment_version: int
    ready: bool

    @property
    def name(self) -> StateName:
        """Whose key groups they are."""
        return self.descriptor.application, self.descriptor.state


class ServerView(msgspec.Struct, frozen=True):
    """The last word of one server, and what the reader knows of their connection.

    Attributes:
        address: Where it is reached; the views of one address replace each other.
        lost: Empty: the connection stands. Otherwise why it doesn't; the holdings are those from before.
        suspect: The connection stands, but the server has not answered for a while: others are asked before it.
        max_key_bytes: The longest storage key that it takes; 0: unknown.
        incarnation: Of its process; empty: unknown.
        lookup_port: Of its lookup port, at the host of its address; 0: it has none.
    """

    address: str
    server: str = ""
    draining: bool = False
    lost: str = ""
    suspect: bool = False
    max_key_bytes: int = 0
    holdings: tuple[Holding, ...] = ()
    incarnation: str = ""
    lookup_port: int = 0

    @property
    def held(self) -> frozenset[StateName]:
        """The states of which it holds key groups."""
        return frozenset(holding.name for holding in self.holdings if holding.key_groups)


def let_go(before: ServerView | None, after: ServerView) -> frozenset[StateName]:
    """The states of which a server held key groups, and holds nothing now though it lives on: it has forgotten them.

    One that was restarted has forgotten nothing: it waits to be given what it held.
    """
    if before is None or after.lost or not after.incarnation or after.incarnation != before.incarnation:
        return frozenset()
    return before.held - {holding.name for holding in after.holdings}
