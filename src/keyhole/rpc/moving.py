"""Has a state server want key groups, or no more, for `keyhole move`."""

from __future__ import annotations

from collections.abc import Collection

from keyhole.rpc.one_server import state_server
from keyhole.security.credentials import PLAIN, Credentials
from keyhole.v1 import state_server_pb2 as pb


def move(
    address: str,
    application: str,
    state: str,
    key_groups: Collection[int],
    *,
    query: str = "",
    undo: bool = False,
    timeout_seconds: float = 5.0,
    credentials: Credentials = PLAIN,
) -> tuple[int, ...]:
    """Asks a server to want key groups, or no more. Blocks; may be repeated. It doesn't wait for them to come.

    Args:
        address: host:port.
        key_groups: At least one.
        query: The state's, with which they are forgotten; it isn't needed to undo it.
        undo: They may be anywhere again.

    Returns:
        All of the state that it wants now, in order.

    Raises:
        Draining: It is to give its key groups to others.
        Unsupported: A replica, or a server of a version that can't be asked.
        TooLarge: More would be placed on the server than it takes.
        PermissionDenied: The caller has not the verb admin for the state.
        KeyholeError: It can't be reached, or refuses.
    """
    request = pb.MoveRequest(
        application=application, query=query, state=state, key_groups=sorted(key_groups), undo=undo
    )
    with state_server(address, credentials) as server:
        answer = server.Move(request, timeout=timeout_seconds)
    return tuple(answer.key_groups)
