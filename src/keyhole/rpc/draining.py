"""Has a state server give its key groups to others, for `keyhole drain`."""

from __future__ import annotations

from typing import NamedTuple

from keyhole.rpc.one_server import state_server
from keyhole.security.credentials import PLAIN, Credentials
from keyhole.v1 import state_server_pb2 as pb


class Drained(NamedTuple):
    """How a server stands.

    Attributes:
        draining: It is given nothing, and others are to have what it owns.
        owns: It is the owner of key groups. It stays that while its job doesn't run, or nobody else could take them.
    """

    draining: bool
    owns: bool


def drain(
    address: str,
    *,
    undo: bool = False,
    look: bool = False,
    timeout_seconds: float = 5.0,
    credentials: Credentials = PLAIN,
) -> Drained:
    """Asks a server to drain, or not to any more. Blocks; may be repeated. It doesn't wait for others to take over.

    Args:
        address: host:port.
        undo: It may be given key groups again.
        look: Nothing is changed.

    Raises:
        Draining: To be undone, and the server is to end.
        Unsupported: A server of a version that drains at its end alone.
        PermissionDenied: The caller has not the verb admin for all states.
        KeyholeError: It can't be reached, or refuses.
    """
    with state_server(address, credentials) as server:
        answer = server.Drain(pb.DrainRequest(undo=undo, look=look), timeout=timeout_seconds)
    return Drained(answer.draining, answer.owns)
