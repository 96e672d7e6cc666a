"""The half of Client that is no read: the event loop in a thread of its own, in which an AsyncClient does the work."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar

from keyhole.client.async_client import AsyncClient
from keyhole.client.bounds import Duration
from keyhole.client.options import Routing
from keyhole.client.target import Targets, targets_of
from keyhole.errors import ClientClosed, Unsupported
from keyhole.model.given import LEFT_OUT
from keyhole.rpc import forked
from keyhole.security.credentials import PLAIN, Credentials

_T = TypeVar("_T")
# Beyond the end of a process that takes its time.
_LAST_SECONDS = 2.0


class ThreadClient:
    """See the module's text; Client says what its arguments are. Thread-safe."""

    def __init__(
        self,
        target: Targets = LEFT_OUT,
        *more: NoReturn,
        timeout: Duration = 5.0,
        credentials: Credentials = PLAIN,
        routing: Routing = "proxy",
    ) -> None:
        targets = targets_of(target, *more)
        self._target = ",".join(targets)
        self._client = AsyncClient(targets, timeout=timeout, credentials=credentials, routing=routing)
        self._closed = self._left_open = False
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        """Without the thread, which the first call makes: a process that is forked before that makes its own."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Client can't be pickled; make it in the process that uses it (for a Python UDF in a function of a "
            "module, with functools.cache)"
        )

    if not TYPE_CHECKING:  # a type checker says by itself that this is none

        async def __aenter__(self) -> NoReturn:
            raise TypeError("a Client is opened by `with`; in coroutines use keyhole.AsyncClient")

        async def __aexit__(self, *_: object) -> None:
            """Never called: Python looks for both first."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection and ends the thread. Calls under way fail with ClientClosed. Idempotent.

        Raises:
            Unsupported: A callback of a future calls it: it would wait for its own end.
        """
        if forked.process.cut_off:
            # Its thread and its connection are the parent's.
            self._closed = True
            return
        self._check_may_block()
        with self._lock:
            loop, thread = self._loop, self._thread
            if self._closed or loop is None or thread is None:
                self._closed = True
                return
            self._closed = True
            # From here on nothing more is started; what was is ended by this.
            closing = asyncio.run_coroutine_threadsafe(self._close(), loop)
        closing.result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    async def _close(self) -> None:
        await self._client.close()
        # Let the calls that just failed hand their errors over before the loop stops.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, left = await asyncio.wait(others, timeout=1.0)
            # Nobody may wait for ever for a future of a loop that stands still.
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=1.0)

    def _begun(self, start: Callable[[], Awaitable[_T]]) -> Future[_T]:
        """The call is under way. Raises ClientClosed or Unsupported."""

        async def run() -> _T:
            try:
                return await start()
            except asyncio.CancelledError as error:
                if self._closed:
                    raise ClientClosed(f"the client of {self._target} was closed", address=self._target) from error
                raise

        # Before the lock, which another thread may have had at the fork.
        forked.check()
        with self._lock:
            if self._closed:
                raise ClientClosed(f"the client of {self._target} is closed; make a new one", address=self._target)
            return asyncio.run_coroutine_threadsafe(run(), self._started())

    def _check_may_block(self) -> None:
        if threading.current_thread() is self._thread:
            raise Unsupported(
                "a callback of a future runs in the client's own thread, which would wait for itself here: read by "
                "get_async or get_many_async in it, and do what blocks in a thread of yours",
                address=self._target,
            )

    def _run(self, start: Callable[[], Awaitable[_T]]) -> _T:
        self._check_may_block()
        try:
            future = self._begun(start)
            try:
                return future.result()
            except BaseException:
                # An interrupted thread leaves nothing under way.
                with contextlib.suppress(RuntimeError):
                    future.cancel()
                raise
        except ClientClosed:
            if self._left_open and threading.current_thread().daemon:
                # It ends with the process, which ends now. Nobody has closed the client: an error would be printed. But
                # the program's own end may wait for this thread.
                threading.Event().wait(_LAST_SECONDS)
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            name = f"keyhole-client-{self._target}"
            self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
            self._thread.start()
        return self._loop


_all: weakref.WeakSet[ThreadClient] = weakref.WeakSet()


def _begin_in_child() -> None:
    for client in _all:
        client._begin()


def _end_all() -> None:
    """Those that a program leaves open when it ends: what runs in their threads would end in the middle, and say so."""
    for client in list(_all):
        client._left_open = not client._closed
        with contextlib.suppress(Exception):  # nobody is left to hear of it
            client.close()


atexit.register(_end_all)

if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_begin_in_child)
