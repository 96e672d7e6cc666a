"""Channels that use new certificates and tokens as soon as their files have them.

gRPC fixes a channel's certificates for its life, and its own reconnects would go on showing expired ones. So each call
asks here for the channel of the files' present content. One that is replaced takes no new calls, and ends with its
last one: a connection that stands needs no new certificate.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from keyhole.rpc.tls import channel_credentials, server_name_options, watched
from keyhole.security.credentials import Credentials, read_token
from keyhole.security.reloading import Reloading

_Options = Sequence[tuple[str, Any]]
_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class Renewing:
    """What of the files counts now. Thread-safe.

    Raises:
        InvalidConfiguration: A file of theirs can't be used.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._material = watched(credentials.files) if credentials.tls else None
        path = credentials.token_file
        self._token = Reloading("token", lambda: read_token(path), (path,)) if path else None

    @property
    def options(self) -> _Options:
        """The channel's, beside the usual ones."""
        return server_name_options(self._credentials)

    def connection(self) -> tuple[grpc.ChannelCredentials | None, int]:
        """What to connect with (None: without TLS), and a number that grows with every change of it."""
        if self._material is None:
            return None, 0
        material, version = self._material.versioned()
        return channel_credentials(material), version

    def version(self) -> tuple[int, int]:
        """Another one: whoever connects or calls now shows something newer."""
        return tuple(of.versioned()[1] if of else 0 for of in (self._material, self._token))  # type: ignore[return-value]

    def metadata(self, given: Any) -> Any:
        """The metadata with the token, if there is one."""
        if self._token is None:
            return given
        return (*(given or ()), ("authorization", self.authorization()))

    def authorization(self) -> str:
        """What a call says of who makes it; empty: there is no token."""
        return f"Bearer {self._token.get()}" if self._token is not None else ""

    def tls(self) -> tuple[ssl.SSLContext | None, str]:
        """What to connect with without gRPC (None: without TLS), and the name that the server's certificate must have;
        empty: that of the host.

        Raises:
            OSError: The files are just being replaced.
        """
        if self._material is None:
            return None, ""
        files = self._credentials.files
        context = ssl.create_default_context(cafile=files.authority or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if files.certificate:
            context.load_cert_chain(files.certificate, files.key)
        return context, self._credentials.tls_server_name


class _AioMethod:
    def __init__(self, channel: RenewedAioChannel, kind: str, arguments: tuple[Any, ...]) -> None:
        self._channel = channel
        self._kind = kind
        self._arguments = arguments

    def __call__(self, *arguments: Any, metadata: Any = None, **options: Any) -> Any:
        held = self._channel.current()
        method = held.method(self._kind, self._arguments)
        call = method(*arguments, metadata=self._channel.renewing.metadata(metadata), **options)
        held.calls += 1
        call.add_done_callback(held.ended)
        return call


class _CountedChannel:
    """One of gRPC's channels, and how many calls it has."""

    def __init__(self, channel: Any, version: int) -> None:
        self.channel = channel
        self.version = version
        self.calls = 0
        self._retired = False
        self._methods: dict[tuple[Any, ...], Any] = {}
        self._closing: asyncio.Task[None] | None = None

    def method(self, kind: str, arguments: tuple[Any, ...]) -> Any:
        key = (kind, arguments)
        if key not in self._methods:
            self._methods[key] = getattr(self.channel, kind)(*arguments)
        return self._methods[key]

    def ended(self, _: object) -> None:
        self.calls -= 1
        self._close_if_unused()

    def retire(self) -> None:
        self._retired = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._retired and not self.calls and self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self.channel.close())


class RenewedAioChannel:
    """Stands for a grpc.aio.Channel, for stubs and for whoever closes it. Used from the event loop's thread only."""

    def __init__(self, target: str, renewing: Renewing, options: _Options) -> None:
        self.renewing = renewing
        self._target = target
        self._options = (*options, *renewing.options)
        self._held = self._open()
        self._replaced: list[_CountedChannel] = []

    def current(self) -> _CountedChannel:
        """The channel for a call that begins now."""
        if self.renewing.version()[0] != self._held.version:
            self._held.retire()
            self._replaced = [held for held in (*self._replaced, self._held) if held.calls]
            self._held = self._open()
        return self._held

    def _open(self) -> _CountedChannel:
        credentials, version = self.renewing.connection()
        if credentials is None:
            return _CountedChannel(grpc.aio.insecure_channel(self._target, options=self._options), version)
        return _CountedChannel(grpc.aio.secure_channel(self._target, credentials, options=self._options), version)

    def __getattr__(self, name: str) -> Any:
        if name not in _KINDS:
            raise AttributeError(name)

        def method(*arguments: Any, **options: Any) -> _AioMethod:
            return _AioMethod(self, name, _positional(arguments, options))

        return method

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """The state of the channel for a call that begins now."""
        state: grpc.ChannelConnectivity = self.current().channel.get_state(try_to_connect)
        return state

    async def __aenter__(self) -> RenewedAioChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Closes the channel, and those that were replaced."""
        for held in (*self._replaced, self._held):
            await held.channel.close(grace)


class _SyncMethod:
    def __init__(self, channel: RenewedChannel, kind: str, arguments: tuple[Any, ...]) -> None:
        self._channel = channel
        self._kind = kind
        self._arguments = arguments

    def __call__(self, *arguments: Any, metadata: Any = None, **options: Any) -> Any:
        return self._method()(*arguments, metadata=self._channel.renewing.metadata(metadata), **options)

    def future(self, *arguments: Any, metadata: Any = None, **options: Any) -> Any:
        return self._method().future(*arguments, metadata=self._channel.renewing.metadata(metadata), **options)

    def with_call(self, *arguments: Any, metadata: Any = None, **options: Any) -> Any:
        return self._method().with_call(*arguments, metadata=self._channel.renewing.metadata(metadata), **options)

    def _method(self) -> Any:
        return getattr(self._channel.current(), self._kind)(*self._arguments)


class RenewedChannel:
    """Stands for a grpc.Channel. Thread-safe. One that is replaced is gRPC's to end, with the last of its calls."""

    def __init__(self, target: str, renewing: Renewing, options: _Options) -> None:
        self.renewing = renewing
        self._target = target
        self._options = (*options, *renewing.options)
        self._closed = False
        self._channel, self._version = self._open()

    def current(self) -> grpc.Channel:
        """The channel for a call that begins now."""
        version = self.renewing.version()[0]
        if version != self._version and not self._closed:
            # Two threads may both open one: the second counts, and the first has no calls.
            self._channel, self._version = self._open()
        return self._channel

    def _open(self) -> tuple[grpc.Channel, int]:
        credentials, version = self.renewing.connection()
        if credentials is None:
            return grpc.insecure_channel(self._target, options=self._options), version
        return grpc.secure_channel(self._target, credentials, options=self._options), version

    def __getattr__(self, name: str) -> Any:
        if name not in _KINDS:
            raise AttributeError(name)

        def method(*arguments: Any, **options: Any) -> _SyncMethod:
            return _SyncMethod(self, name, _positional(arguments, options))

        return method

    def __enter__(self) -> RenewedChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the calls that are under way, with CANCELLED; later ones fail. Idempotent."""
        self._closed = True
        self._channel.close()


def _positional(arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """method, request serializer, response deserializer, as generated stubs give them by name."""
    names: tuple[str, ...] = ("method", "request_serializer", "response_deserializer")
    found: list[Callable[..., Any] | str | None] = [*arguments]
    found += [options.get(name) for name in names[len(arguments) :]]
    return tuple(found[:3])
