"""What servers say of themselves, and what proxies say of them to clients, as what routes are made of. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from keyhole.errors import Unsupported
from keyhole.protocol.server_view import Holding, ServerView, StateName
from keyhole.rpc import convert
from keyhole.v1 import query_pb2, state_server_pb2

_LOST = "the proxy has no connection to it"


def no_routes() -> Unsupported:
    """Why a state server tells no routes."""
    return Unsupported("a state server knows of no other one; a client proxy tells the routes")


def view_of(address: str, message: state_server_pb2.Ownership | query_pb2.RoutedServer) -> ServerView:
    """The view of a server whose connection stands. Raises MalformedRequest: A descriptor that can't be read."""
    return ServerView(
        address=address,
        server=message.server,
        draining=message.draining,
        max_key_bytes=message.max_key_bytes,
        holdings=tuple(_holding(holding) for holding in message.holdings),
        incarnation=message.incarnation,
        lookup_port=message.lookup_port,
    )


def routed(view: ServerView, holdings: Iterable[query_pb2.StateHolding], name: StateName) -> query_pb2.RoutedServer:
    """What a proxy says of a server to those who read one state.

    Args:
        holdings: As the server said them last, of any states.
    """
    return query_pb2.RoutedServer(
        server=view.server,
        address=view.address,
        incarnation=view.incarnation,
        draining=view.draining,
        holdings=[of for of in holdings if (of.descriptor.application, of.descriptor.state) == name],
        max_key_bytes=view.max_key_bytes,
        lost=bool(view.lost),
        silent=view.suspect,
        lookup_port=view.lookup_port,
    )


def views_of(message: query_pb2.Routes) -> list[ServerView]:
    """The proxy's views of the servers. Raises as `view_of`."""
    return [
        msgspec.structs.replace(view_of(of.address, of), lost=_LOST if of.lost else "", suspect=of.silent)
        for of in message.servers
    ]


def _holding(message: query_pb2.StateHolding) -> Holding:
    source = convert.source_from_proto(message.source)
    return Holding(
        descriptor=convert.descriptor_from_proto(message.descriptor),
        key_groups=frozenset(message.key_groups),
        role=source.role,
        generation=source.generation,
        assignment_version=source.assignment_version,
        ready=message.ready,
    )
