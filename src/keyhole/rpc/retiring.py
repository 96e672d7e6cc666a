"""Retires queries on a state server, for `keyhole retire` and for whoever runs many queries on one server."""

from __future__ import annotations

import time

from keyhole.errors import StillRunning
from keyhole.rpc.channels import sync_channel
from keyhole.rpc.one_server import errors_of
from keyhole.security.credentials import PLAIN, Credentials
from keyhole.v1 import state_server_pb2 as pb
from keyhole.v1 import state_server_pb2_grpc

_AGAIN_SECONDS = 0.2


def retire(
    address: str,
    application: str,
    query: str = "",
    *,
    check_only: bool = False,
    timeout_seconds: float = 30.0,
    credentials: Credentials = PLAIN,
) -> dict[str, list[str]]:
    """Has the server forget queries, and delete what it has stored of them. Blocks; may be repeated.

    While a run is alive the server is asked again, within the time: it counts as alive until its lease has passed.

    Args:
        address: host:port.
        query: Empty: all of the application.
        check_only: Nothing is forgotten: it only says what would be. A server of an earlier version forgets at once.
        timeout_seconds: For all of it.

    Returns:
        The states of each query that was forgotten now; empty: there was nothing of it.

    Raises:
        StillRunning: Until the end of the time. Nothing was changed.
        Unsupported: A server of a version that retires nothing.
        KeyholeError: It can't be reached, or refuses.
    """
    until = time.monotonic() + timeout_seconds
    request = pb.RetireQueryRequest(application=application, query=query, check_only=check_only)
    with sync_channel(address, credentials) as channel:
        stub = state_server_pb2_grpc.StateServerStub(channel)
        while True:
            try:
                with errors_of(address):
                    answer = stub.RetireQuery(request, timeout=max(_AGAIN_SECONDS, until - time.monotonic()))
            except StillRunning:
                if time.monotonic() > until:
                    raise
                time.sleep(_AGAIN_SECONDS)
            else:
                return {of.query: list(of.states) for of in answer.queries}
