"""How every caller connects: one set of channel options, for asyncio and for threads."""

from __future__ import annotations

from typing import TypeAlias, cast

import grpc

from keyhole.rpc import forked
from keyhole.rpc.frames import MAX_MESSAGE_BYTES, MAX_RESPONSE_BYTES
from keyhole.rpc.rotation import RenewedAioChannel, RenewedChannel, Renewing
from keyhole.security.credentials import PLAIN, Credentials

Options: TypeAlias = tuple[tuple[str, int | str], ...]


def _patience(time_ms: int, timeout_ms: int) -> Options:
    """A peer that vanished without a word (a pulled cable, a frozen machine) is noticed after the two, added up.

    An attempt to connect may take as long as the first: gRPC has no other name for that than a backoff. One that is
    refused fails at once; a busy machine, or a far one, takes a while to say its first word, and calls that have time
    for it must not fail.

    Any ping without an answer counts, also those that measure the connection: their timeout is a minute by default,
    and no other ping is sent meanwhile (measured with grpcio 1.85).
    """
    return (
        ("grpc.keepalive_time_ms", time_ms),
        ("grpc.keepalive_timeout_ms", timeout_ms),
        ("grpc.http2.ping_timeout_ms", timeout_ms),
        ("grpc.min_reconnect_backoff_ms", time_ms),
    )


_OF_CLIENTS = _patience(10_000, 5_000)
# The coordinator and the tasks wait for a server for as long as an epoch may take, and a proxy has many who wait: they
# notice sooner.
_OF_LINKS = _patience(2_000, 2_000)

MESSAGE_SIZE: Options = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
)
"""Of callers. A server's is the other way round."""

_CLIENT: Options = (
    *MESSAGE_SIZE,
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A restarted server should be found again in a moment, not after gRPC's default of up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Retries are ours: they follow the routes and keep the caller's deadline.
    ("grpc.enable_retries", 0),
    # Closing a channel closes its connection, even where another channel has the same target.
    ("grpc.use_local_subchannel_pool", 1),
    # http_proxy in the environment is meant for the web, not for servers found by their address.
    ("grpc.enable_http_proxy", 0),
)


def prepared(target: str, credentials: Credentials) -> Renewing | None:
    """What a channel to the target shows, without anything of gRPC's; None: nothing, and no TLS.

    Raises:
        InvalidConfiguration: The credentials contradict each other, or a file of theirs can't be used.
    """
    credentials.check(target)
    return Renewing(credentials) if credentials.tls or credentials.token_file else None


def prepared_aio_channel(target: str, shown: Renewing | None, *, alone: bool) -> grpc.aio.Channel:
    """As `aio_channel`, of what was prepared before. Not alone: another one can be asked, so that this one is gone is
    noticed as soon as by `aio_link`.
    """
    return _aio(target, shown, (*_CLIENT, *(_OF_CLIENTS if alone else _OF_LINKS)))


def aio_channel_to(address: str, name: str, shown: Renewing | None) -> grpc.aio.Channel:
    """As `aio_link`, to one of the addresses of a name, by what was prepared for it: that name is asked for."""
    return _aio(address, shown, (*_CLIENT, *_OF_LINKS, ("grpc.default_authority", name)))


def aio_channel(target: str, credentials: Credentials = PLAIN) -> grpc.aio.Channel:
    """A channel for the running event loop. Connects at its first call; close it with `await channel.close()`.

    Raises:
        InvalidConfiguration: As `prepared`.
        Unsupported: This process was forked beside a connection of gRPC's.
    """
    return _aio(target, prepared(target, credentials), (*_CLIENT, *_OF_CLIENTS))


def aio_link(target: str, credentials: Credentials = PLAIN) -> grpc.aio.Channel:
    """As `aio_channel`, from one Keyhole process to another: that the other is gone is noticed within seconds."""
    return _aio(target, prepared(target, credentials), (*_CLIENT, *_OF_LINKS))


def sync_channel(target: str, credentials: Credentials = PLAIN) -> grpc.Channel:
    """A channel for threads. Connects at its first call. Raises as `aio_channel`."""
    forked.check()
    options = (*_CLIENT, *_OF_LINKS)
    shown = prepared(target, credentials)
    if shown is None:
        return grpc.insecure_channel(target, options=options)
    # It does what stubs need of a channel, and no more.
    return cast("grpc.Channel", RenewedChannel(target, shown, options))


def _aio(target: str, shown: Renewing | None, options: Options) -> grpc.aio.Channel:
    forked.check()
    if shown is None:
        return grpc.aio.insecure_channel(target, options=options)
    return cast("grpc.aio.Channel", RenewedAioChannel(target, shown, options))
