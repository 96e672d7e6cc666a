"""gRPC's asyncio batches, made to give back their memory when they fail or nobody waits for them any more.

grpcio 1.85 frees what it has allocated for a batch of a call's operations only where whoever awaits it gets its result
(github.com/grpc/grpc/issues/43360). What a server sends to a caller who has gone is lost, with the whole status in it.
With streams that are begun and given up, anybody makes a server grow for as long as he likes. The scattered pieces keep
the allocator from giving back what is free around them.

Here a batch is always run to its end, and only then does whoever waits hear of it, if anyone does. That needs parts of
grpcio that aren't public; tests/rpc/test_limits.py shows that they do what they should with the locked version. Where
another version has them no more, it is left as it is.

Library: grpcio. Seen with 1.85. May go once that issue is fixed in the oldest grpcio that pyproject.toml allows, and
tests/rpc/test_limits.py passes without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import grpc._cython.cygrpc as _cygrpc  # type: ignore[import-not-found]  # no stubs of what is not public

_log = logging.getLogger(__name__)

_Execute = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]


def mend() -> None:
    """Mends all calls of this process, as server and as client. Idempotent."""
    execute: _Execute | None = getattr(_cygrpc, "execute_batch", None)
    if execute is None:
        _log.warning("this version of grpcio is not known: callers who go away may cost memory")
        return
    if getattr(execute, "gives_back", False):
        return

    def execute_batch(call: Any, operations: Any, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        return _GrpcBatch(loop).begin(execute, call, operations)

    execute_batch.gives_back = True  # type: ignore[attr-defined]
    _cygrpc.execute_batch = execute_batch


class _GrpcBatch:
    """One batch. For gRPC it stands for the loop, of which gRPC wants a future and a way into its thread, and for that
    future."""

    __slots__ = ("_loop", "_running", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiter: asyncio.Future[None] = loop.create_future()
        self._running: Coroutine[Any, Any, None] | None = None

    def begin(self, execute: _Execute, call: Any, operations: Any) -> asyncio.Future[None]:
        """Hands it to gRPC. Returns what its caller is to await, and may cancel."""
        self._running = execute(call, operations, self)
        self._running.send(None)
        return self._waiter

    # As a loop.

    def create_future(self) -> _GrpcBatch:
        return self

    def call_soon_threadsafe(self, callback: Callable[..., object], *arguments: object) -> None:
        # The loop of another thread may have taken the event in.
        if asyncio._get_running_loop() is self._loop:
            callback(*arguments)
        else:
            self._loop.call_soon_threadsafe(callback, *arguments)

    # As a future: gRPC says what came of the batch, in the loop's thread.

    def __await__(self) -> Generator[None, None, None]:
        yield

    def cancelled(self) -> bool:
        return False

    def set_result(self, result: None) -> None:
        self._end()
        if not self._waiter.done():
            self._waiter.set_result(None)

    def set_exception(self, error: Exception) -> None:
        self._end()
        if not self._waiter.done():
            self._waiter.set_exception(error)

    def _end(self) -> None:
        """Lets it go on as if it were well, which takes the operations' results and frees them."""
        running, self._running = self._running, None
        assert running is not None
        try:
            running.send(None)
        except StopIteration:
            return
        raise AssertionError("gRPC awaits more than one thing in a batch")
