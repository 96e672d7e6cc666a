"""The half of AsyncClient that is no read: its connection, which belongs to the event loop that used it first."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from keyhole.client.bounds import Duration, seconds_of
from keyhole.client.options import Routing, defaults, is_direct
from keyhole.client.target import Targets, targets_of
from keyhole.client.wire.connection import Connection
from keyhole.errors import ClientClosed, InvalidConfiguration, MalformedRequest, Unsupported
from keyhole.model.given import LEFT_OUT
from keyhole.rpc import channels, forked
from keyhole.security.credentials import PLAIN, Credentials

# None outside of one; asyncio's own, public for libraries like this one.
running_loop = asyncio._get_running_loop


class EventLoopClient:
    """See the module's text; AsyncClient says what its arguments are."""

    def __init__(
        self,
        target: Targets = LEFT_OUT,
        *more: NoReturn,
        timeout: Duration = 5.0,
        credentials: Credentials = PLAIN,
        routing: Routing = "proxy",
    ) -> None:
        self._targets = targets_of(target, *more)
        self._target = ",".join(self._targets)
        self._timeout = seconds_of("timeout", timeout)
        if self._timeout <= 0:
            raise MalformedRequest(f"timeout is {timeout}; within that no read has an answer: give seconds above 0")
        self._defaults = defaults(self._timeout)
        if not isinstance(credentials, Credentials):
            raise InvalidConfiguration(
                f"credentials is a {type(credentials).__name__}; give keyhole.Credentials(...), or leave it out"
            )
        # Files that can't be used are refused now, and not at the first call.
        self._shown = [channels.prepared(target, credentials) for target in self._targets]
        self._directly = credentials if is_direct(routing) else None
        self._connection: Connection | None = None
        self._closed = False

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an AsyncClient can't be pickled; make it in the process that uses it (for a Python UDF in a function of a "
            "module, with functools.cache)"
        )

    if not TYPE_CHECKING:  # a type checker says by itself that this is none

        def __enter__(self) -> NoReturn:
            raise TypeError("an AsyncClient is opened by `async with`; outside of coroutines use keyhole.Client")

        def __exit__(self, *_: object) -> None:
            """Never called: Python looks for both first."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection. What is under way fails with ClientClosed. Idempotent.

        Raises:
            Unsupported: It is used in another event loop, which still goes on.
        """
        connection = self._connection
        if self._closed or connection is None or forked.process.cut_off:
            self._closed = True
            return
        if connection.loop is not running_loop() and not connection.loop.is_closed():
            raise self._elsewhere()
        self._closed, self._connection = True, None
        if not connection.loop.is_closed():
            await connection.close(self._closed_error())

    def _here(self) -> Connection:
        """The connection, for the running event loop.

        Raises:
            ClientClosed: The client is closed.
            Unsupported: There is no event loop, it is another one than the client's, or gRPC can't be used here.
        """
        connection = self._connection
        if connection is None or connection.loop is not running_loop() or forked.process.cut_off:
            return self._connected()
        return connection

    def _connected(self) -> Connection:
        if self._closed:
            raise self._closed_error()
        forked.check()
        loop = running_loop()
        if loop is None:
            raise Unsupported(
                "an AsyncClient is used inside a running event loop, by a coroutine; elsewhere, and in threads, use "
                "keyhole.Client",
                address=self._target,
            )
        if self._connection is not None:
            raise self._elsewhere()
        self._connection = Connection(self._targets, self._shown, self._directly)
        return self._connection

    def _closed_error(self) -> ClientClosed:
        return ClientClosed(f"the client of {self._target} is closed; make a new one", address=self._target)

    def _elsewhere(self) -> Unsupported:
        return Unsupported(
            f"this AsyncClient of {self._target} belongs to the event loop that used it first, and this is another one "
            "(each thread and each asyncio.run has its own); make a client in each, or one keyhole.Client for all "
            "threads",
            address=self._target,
        )

    def _seconds(self, timeout: Duration | None) -> float:
        return self._timeout if timeout is None else seconds_of("timeout", timeout)
