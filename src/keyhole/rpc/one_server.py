"""One state server that a tool asks by its address: a channel of its own, and its errors as Keyhole's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from keyhole.rpc.channels import sync_channel
from keyhole.rpc.status import from_rpc_error
from keyhole.security.credentials import PLAIN, Credentials
from keyhole.v1 import state_server_pb2_grpc


@contextmanager
def errors_of(address: str) -> Iterator[None]:
    """Around calls of a stub: what gRPC raises of them becomes the KeyholeError that the server meant."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(error, address) from error


@contextmanager
def state_server(address: str, credentials: Credentials = PLAIN) -> Iterator[state_server_pb2_grpc.StateServerStub]:
    """Its calls, for threads; the channel is closed at the end.

    Raises:
        InvalidConfiguration, Unsupported: As keyhole.rpc.channels.sync_channel.
        KeyholeError: As `errors_of`, of all that is called within.
    """
    with sync_channel(address, credentials) as channel, errors_of(address):
        yield state_server_pb2_grpc.StateServerStub(channel)
